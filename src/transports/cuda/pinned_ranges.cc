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
    std::unique_lock lock(ranges_.mutex_);
    if (--range_->second.holders == 0) ranges_.remove(lock, range_);
  }
  [[nodiscard]] uint64_t delta() const noexcept override { return delta_; }

 private:
  PinnedRanges& ranges_;
  const Ranges::iterator range_;
  const uint64_t delta_;
};

PinnedRanges::PinnedRanges() = default;
PinnedRanges::~PinnedRanges() = default;

PinnedRanges::Ranges::iterator PinnedRanges::overlapping(uint64_t begin, uint64_t end) {
  auto near = ranges_.upper_bound(begin);
  if (near != ranges_.begin() && std::prev(near)->second.end > begin) --near;
  return near != ranges_.end() && near->first < end ? near : ranges_.end();
}

// The range stays in the list, as nobody's, until the driver has let go: it would be taken for the
// application's.
void PinnedRanges::remove(std::unique_lock<std::mutex>& lock, Ranges::iterator range) noexcept {
  std::unique_ptr<Pinned> going = std::move(range->second.pinned);
  lock.unlock();
  going.reset();
  lock.lock();
  ranges_.erase(range);
  settled_.notify_all();
}

std::shared_ptr<const Pinned> PinnedRanges::find(std::unique_lock<std::mutex>& lock, Device& device,
                                                 uint64_t address, uint64_t bytes, Use use, bool wait) {
  const auto [begin, end] = pages_around(address, bytes);
  for (auto near = overlapping(begin, end); near != ranges_.end(); near = overlapping(begin, end)) {
    if (near->second.pinned == nullptr) {
      if (!wait) return nullptr;
      settled_.wait(lock);
      continue;
    }
    if (near->first > begin || near->second.end < end)
      fail(Status::kUnsupported, "cuda: other transfers have pinned a part of the {} bytes at {:#x}", bytes,
           address);
    return std::make_shared<Hold>(*this, near);
  }
  std::shared_ptr<const Pinned> theirs = device.find_pinned(address, bytes);
  if (theirs != nullptr && theirs->use() < use)
    fail(Status::kUnsupported, "cuda: the application has pinned the {} bytes at {:#x} for reading only",
         bytes, address);
  return theirs;
}

std::shared_ptr<const Pinned> PinnedRanges::find(Device& device, uint64_t address, uint64_t bytes, Use use) {
  std::unique_lock lock(mutex_);
  return find(lock, device, address, bytes, use, false);
}

std::shared_ptr<const Pinned> PinnedRanges::take(Device& device, uint64_t address, uint64_t bytes, Use use) {
  std::unique_lock lock(mutex_);
  if (auto found = find(lock, device, address, bytes, use, true)) return found;
  const auto [begin, end] = pages_around(address, bytes);
  const auto made = ranges_.emplace(begin, Range{end, 0, nullptr}).first;
  try {
    lock.unlock();
    std::unique_ptr<Pinned> pinned = device.pin(begin, end - begin);
    lock.lock();
    made->second.pinned = std::move(pinned);
    auto held = std::make_shared<Hold>(*this, made);
    settled_.notify_all();
    return held;
  } catch (...) {
    if (!lock.owns_lock()) lock.lock();
    remove(lock, made);
    throw;
  }
}

}  // namespace towline::cuda
