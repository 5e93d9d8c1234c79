#include "transports/cuda/pinned_ranges.h"

#include "base/error.h"
#include "transports/cuda/device.h"

namespace towline::cuda {

// One holder of a range.
class PinnedRanges::Hold final : public Pinned {
 public:
  Hold(PinnedRanges& ranges, Ranges::iterator range)
      : ranges_(ranges), range_(range), delta_(range->second.pinned->delta()) {
    ++range_->second.holders;
  }
  ~Hold() override {
    const std::lock_guard lock(ranges_.mutex_);
    if (--range_->second.holders == 0) ranges_.ranges_.erase(range_);
  }
  [[nodiscard]] uint64_t delta() const noexcept override { return delta_; }

 private:
  PinnedRanges& ranges_;
  const Ranges::iterator range_;
  const uint64_t delta_;
};

PinnedRanges::PinnedRanges() = default;
PinnedRanges::~PinnedRanges() = default;

std::shared_ptr<const Pinned> PinnedRanges::take(Device& device, uint64_t address, uint64_t bytes, Use use,
                                                 PinUse pin) {
  const auto [begin, end] = pages_around(address, bytes);
  const std::lock_guard lock(mutex_);
  auto near = ranges_.upper_bound(begin);
  if (near != ranges_.begin() && std::prev(near)->second.end > begin) --near;
  if (near != ranges_.end() && near->first < end) {
    if (near->first > begin || near->second.end < end)
      fail(Status::kUnsupported, "cuda: other transfers have pinned a part of the {} bytes at {:#x}", bytes,
           address);
    return std::make_shared<Hold>(*this, near);
  }
  if (std::shared_ptr<const Pinned> theirs = device.find_pinned(address, bytes); theirs != nullptr) {
    if (theirs->use() < use)
      fail(Status::kUnsupported, "cuda: the application has pinned the {} bytes at {:#x} for reading only",
           bytes, address);
    return theirs;
  }
  if (pin == PinUse::kNever)
    fail(Status::kUnsupported, "cuda.pin is \"never\", and host memory is not pinned");
  const auto made = ranges_.emplace(begin, Range{end, 0, nullptr}).first;
  try {
    made->second.pinned = device.pin(begin, end - begin);
    return std::make_shared<Hold>(*this, made);
  } catch (...) {
    ranges_.erase(made);
    throw;
  }
}

}  // namespace towline::cuda
