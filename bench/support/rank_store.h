// The store by which ranks that are threads of one process find one another.
#pragma once

#include <towline/collectives.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

namespace bench {

class RankStore {
 public:
  towline_collective_store_t table() {
    towline_collective_store_t made = {};
    made.struct_size = sizeof made;
    made.context = this;
    made.set = [](void* context, const char* key, const void* value, size_t bytes) -> int32_t {
      auto& self = *static_cast<RankStore*>(context);
      const std::lock_guard lock(self.mutex_);
      self.values_[key].assign(static_cast<const char*>(value), bytes);
      self.changed_.notify_all();
      return TOWLINE_OK;
    };
    made.get = [](void* context, const char* key, uint64_t timeout_ns, void* value, size_t capacity,
                  size_t* bytes) -> int32_t {
      auto& self = *static_cast<RankStore*>(context);
      std::unique_lock lock(self.mutex_);
      const std::chrono::nanoseconds longest = std::chrono::hours(24);
      const auto timeout =
          std::chrono::nanoseconds(std::min(timeout_ns, static_cast<uint64_t>(longest.count())));
      if (!self.changed_.wait_for(lock, timeout, [&] { return self.values_.contains(key); }))
        return TOWLINE_TIMED_OUT;
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

}  // namespace bench
