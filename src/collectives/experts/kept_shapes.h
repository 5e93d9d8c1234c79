// Shapes of exchanges for which a proxy keeps plans: the eight that were used last, and those that graphs have recorded, which
// replays can use at any time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/error.h"

namespace towline::collectives::experts {

template <class Shape>
class KeptShapes {
 public:
  static constexpr size_t kMostUsed = 8;
  static constexpr size_t kMostRecorded = 256;

  struct Kept {
    uint32_t number = 0;  // not 0, and of no other shape
    Shape shape;
    bool recorded = false;
  };

  // Does use() of this shape give up another one?
  [[nodiscard]] bool replaces(const Shape& shape, bool records) const noexcept {
    return !records && used() >= kMostUsed && find(shape) == all_.end();
  }
  // The shape's number. Throws Error where graphs have recorded too many shapes.
  uint32_t use(const Shape& shape, bool records) {
    auto kept = all_.begin() + (find(shape) - all_.cbegin());
    if (records && (kept == all_.end() || !kept->recorded) && all_.size() - used() == kMostRecorded)
      fail(Status::kLimitExceeded,
           "experts: graphs have recorded exchanges of {} shapes with ranks of other hosts: open another "
           "member for more",
           kMostRecorded);
    if (replaces(shape, records)) {
      all_.erase(std::find_if(all_.begin(), all_.end(), [](const Kept& each) { return !each.recorded; }));
      kept = all_.end();
    }
    if (kept == all_.end())
      all_.push_back({++last_, shape, false});
    else
      std::rotate(kept, kept + 1, all_.end());
    all_.back().recorded = all_.back().recorded || records;
    return all_.back().number;
  }
  [[nodiscard]] bool has(uint32_t number) const noexcept {
    return std::any_of(all_.begin(), all_.end(), [&](const Kept& each) { return each.number == number; });
  }
  [[nodiscard]] const std::vector<Kept>& all() const noexcept { return all_; }

 private:
  [[nodiscard]] auto find(const Shape& shape) const noexcept {
    return std::find_if(all_.begin(), all_.end(), [&](const Kept& each) { return each.shape == shape; });
  }
  [[nodiscard]] size_t used() const noexcept {
    return static_cast<size_t>(
        std::count_if(all_.begin(), all_.end(), [](const Kept& each) { return !each.recorded; }));
  }

  std::vector<Kept> all_;  // the last used one is the last
  uint32_t last_ = 0;
};

}  // namespace towline::collectives::experts
