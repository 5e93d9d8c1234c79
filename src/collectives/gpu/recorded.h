// Which graph recorded which operation, so that an error in a replay can say so.
#pragma once

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <vector>

namespace towline::collectives::gpu {

class Recorded {
 public:
  // Numbers rise; a window's, which it keeps, are not added again.
  void add(uint64_t number, uint64_t graph) {
    const std::lock_guard lock(mutex_);
    if (!runs_.empty() && number <= runs_.back().last) return;
    if (!runs_.empty() && runs_.back().graph == graph && runs_.back().last + 1 == number)
      runs_.back().last = number;
    else
      runs_.push_back({number, number, graph});
  }

  // 0: no graph recorded it.
  [[nodiscard]] uint64_t graph_of(uint64_t number) const {
    const std::lock_guard lock(mutex_);
    const auto run = std::ranges::lower_bound(runs_, number, {}, &Run::last);
    return run != runs_.end() && run->first <= number ? run->graph : 0;
  }

 private:
  struct Run {
    uint64_t first;
    uint64_t last;
    uint64_t graph;
  };

  mutable std::mutex mutex_;
  std::vector<Run> runs_;
};

}  // namespace towline::collectives::gpu
