// Parts for ranks that are threads of one process.
#pragma once

#include <fmt/format.h>
#include <towline/collectives_gpu.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <iostream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "support/pause.h"
#include "support/rank_store.h"
#include "support/statistics.h"
#include "support/table.h"

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

// body(rank) on a thread for each. One that throws ends the process, since the others wait for it.
template <class Body>
void run_ranks(int size, Body&& body) {
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < size; ++rank)
    ranks.emplace_back([&body, rank, size] {
      try {
        body(rank);
      } catch (const std::exception& error) {
        std::cerr << fmt::format("rank {} of {}: {}\n", rank, size, error.what()) << std::flush;
        _exit(1);
      }
    });
  for (std::thread& rank : ranks) rank.join();
}

// What the ranks of one run share.
struct SharedRun {
  explicit SharedRun(int ranks) : size(ranks), meet(ranks), times(static_cast<size_t>(ranks)) {}
  // Of the slower rank. The ranks have met since each set its own.
  [[nodiscard]] double slowest() const { return *std::max_element(times.begin(), times.end()); }

  const int size;
  RankStore store = {};
  Meeting meet;
  std::vector<double> times;  // by rank, of what was timed last
  std::atomic<uint64_t> wrong{0};
  Rows rows;
};

// Median [min max] of seconds, in microseconds.
inline std::string us_text(const std::vector<double>& seconds) {
  const Spread spread = spread_of(seconds);
  return fmt::format("{:.2f} [{:.2f} {:.2f}]", spread.median * 1e6, spread.min * 1e6, spread.max * 1e6);
}

// A contender of ours.
struct Way {
  std::string name;
  std::string config;
};

// Towline as it is, and others: name|settings of [tuning.collectives], ';' between.
inline std::vector<Way> ways_of(const std::vector<std::string>& others) {
  std::vector<Way> made{{"Towline", ""}};
  for (const std::string& one : others) {
    const size_t bar = one.find('|');
    Way& way = made.emplace_back(Way{one.substr(0, bar), bar == one.npos ? "" : one.substr(bar + 1)});
    std::replace(way.config.begin(), way.config.end(), ';', '\n');
  }
  return made;
}

inline towline_communicator_t* communicator(RankStore& store, const char* name, int rank, int size,
                                            const std::string& settings, int gpu) {
  const auto table = store.table();
  const std::string config = fmt::format("[tuning.collectives]\ngpu = {}\n{}\n", gpu, settings);
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
