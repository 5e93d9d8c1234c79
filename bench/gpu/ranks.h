// What ranks that are threads of one process share.
#pragma once

#include <fmt/format.h>
#include <towline/collectives_gpu.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>

#include "support/pause.h"

namespace bench::gpu {

inline void need(int32_t status, const char* what) {
  if (status != TOWLINE_OK) throw std::runtime_error(fmt::format("{}: {}", what, towline_last_error()));
}

class Store {
 public:
  towline_collective_store_t table() {
    towline_collective_store_t made = {};
    made.struct_size = sizeof made;
    made.context = this;
    made.set = [](void* context, const char* key, const void* value, size_t bytes) -> int32_t {
      auto& self = *static_cast<Store*>(context);
      const std::lock_guard lock(self.mutex_);
      self.values_[key].assign(static_cast<const char*>(value), bytes);
      self.changed_.notify_all();
      return TOWLINE_OK;
    };
    made.get = [](void* context, const char* key, uint64_t, void* value, size_t capacity,
                  size_t* bytes) -> int32_t {
      auto& self = *static_cast<Store*>(context);
      std::unique_lock lock(self.mutex_);
      self.changed_.wait(lock, [&] { return self.values_.contains(key); });
      const std::string& found = self.values_[key];
      std::memcpy(value, found.data(), std::min(capacity, found.size()));
      *bytes = found.size();
      return TOWLINE_OK;
    };
    return made;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
};

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

inline towline_communicator_t* communicator(Store& store, const char* name, int rank, int size,
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
