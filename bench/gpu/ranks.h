// Parts for ranks that are threads of one process.
#pragma once

#include <fmt/format.h>
#include <towline/collectives_gpu.h>

#include <atomic>
#include <stdexcept>
#include <string>

#include "support/pause.h"
#include "support/rank_store.h"

namespace bench::gpu {

inline void need(int32_t status, const char* what) {
  if (status != TOWLINE_OK) throw std::runtime_error(fmt::format("{}: {}", what, towline_last_error()));
}

// Threads that start within a microsecond of one another: they spin.
class Meeting {
 public:
  explicit Meeting(int size) : size_(size) {}
  void operator()() {
    const uint32_t turn = turn_.load();
    if (here_.fetch_add(1) + 1 == size_) {
      here_.store(0);
      turn_.fetch_add(1);
      return;
    }
    Spinner spin;
    while (turn_.load() == turn) spin();
  }

 private:
  const int size_;
  std::atomic<int> here_{0};
  std::atomic<uint32_t> turn_{0};
};

inline towline_communicator_t* communicator(RankStore& store, const char* name, int rank, int size,
                                            const std::string& settings) {
  const auto table = store.table();
  const std::string config = fmt::format("[tuning.collectives]\ngpu = {}\n{}\n", rank, settings);
  towline_communicator_options_t options = {};
  options.struct_size = sizeof options;
  options.name = name;
  options.backend = "gpu";
  options.rank = rank;
  options.size = size;
  options.store = &table;
  options.config = config.c_str();
  options.timeout_ns = 10'000'000'000;
  towline_communicator_t* made = nullptr;
  need(towline_communicator_create(&options, &made), "communicator");
  return made;
}

}  // namespace bench::gpu
