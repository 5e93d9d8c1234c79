#include "gpu/pinned_ranges.h"

#include "base/error.h"
#include "gpu/device.h"

namespace towline::cuda {

// One holder of a range.
class PinnedRanges::Hold final : public Pinned {
 public:
  Hold(PinnedRanges& ranges, Ranges::iterator range)
      : ranges_(ranges), range_(range), delta_(range->second.pinned->delta()) {
    ++range_->second.holders;
  }
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;
  ~Hold() override {
    std::unique_lock lock(ranges_.mutex_);
    if (--range_->second.holders == 0) ranges_.remove(lock, range_);
  }
  [[nodiscard]] uint64_t delta() const noexcept override { return delta_; }
  [[nodiscard]] uint64_t begin() const noexcept { return range_->first; }
  [[nodiscard]] uint64_t end() const noexcept { return range_->second.end; }

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

// The range stays in the list without an owner until the driver has unpinned it: it would be taken for the
// application's.
void PinnedRanges::remove(std::unique_lock<std::mutex>& lock, Ranges::iterator range) noexcept {
  std::unique_ptr<Pinned> going = std::move(range->second.pinned);
  lock.unlock();
  going.reset();
  lock.lock();
  ranges_.erase(range);
  settled_.notify_all();
}

// The pinned parts of the requested memory, in order.
struct PinnedRanges::Cover {
  std::vector<Ranges::iterator> ranges;
  std::optional<HostPages> gap;  // the first one
  bool settling = false;         // one of the ranges is being pinned or unpinned
};

namespace {

// The pages that the memory fills, and before and after them one that it may share.
std::vector<HostPages> parts_of(uint64_t address, uint64_t bytes) {
  const HostPages all = pages_around(address, bytes);
  const uint64_t head = address != all.begin ? all.begin + kHostPage : all.begin;
  const uint64_t tail = address + bytes != all.end ? all.end - kHostPage : all.end;
  if (tail <= head) {  // at most two pages, none of them filled, or one range
    std::vector<HostPages> pages;
    for (uint64_t at = all.begin; at < all.end; at += kHostPage) pages.push_back({at, at + kHostPage});
    return pages;
  }
  std::vector<HostPages> parts;
  if (head != all.begin) parts.push_back({all.begin, head});
  parts.push_back({head, tail});
  if (tail != all.end) parts.push_back({tail, all.end});
  return parts;
}

std::shared_ptr<const Pinned> pinned_by_application(Device& device, uint64_t address, uint64_t bytes,
                                                    Use use) {
  std::shared_ptr<const Pinned> theirs = device.find_pinned(address, bytes);
  if (theirs != nullptr && theirs->use() < use)
    fail(Status::kUnsupported, "cuda: the application has pinned the {} bytes at {:#x} for reading only",
         bytes, address);
  return theirs;
}

}  // namespace

// Ranges that lie side by side, held as one.
class PinnedRanges::Together final : public Pinned {
 public:
  explicit Together(Holds holds) : holds_(std::move(holds)) {}
  [[nodiscard]] uint64_t delta() const noexcept override { return holds_.front()->delta(); }
  [[nodiscard]] uint64_t end_of(uint64_t address) const noexcept override {
    if (address < holds_.front()->begin()) return UINT64_MAX;
    for (const auto& hold : holds_)
      if (address < hold->end()) return hold->end();
    return UINT64_MAX;
  }

 private:
  const Holds holds_;
};

// A range that reaches out of the part on one side only would stay pinned, for this part's sake, when its own
// memory has been given back.
void PinnedRanges::look_at(const HostPages& part, Cover& cover) {
  for (uint64_t at = part.begin; at < part.end;) {
    const auto near = overlapping(at, part.end);
    if (near == ranges_.end() || near->first > at) {
      cover.gap = HostPages{at, near == ranges_.end() ? part.end : near->first};
      return;
    }
    const Range& range = near->second;
    cover.settling = range.pinned == nullptr;
    if (cover.settling) return;
    const bool around = near->first <= part.begin && range.end >= part.end;
    const bool inside = near->first >= part.begin && range.end <= part.end;
    if (!around && !inside)
      fail(Status::kUnsupported, "cuda: other transfers have pinned a part of the {} bytes at {:#x}",
           part.bytes(), part.begin);
    if (cover.ranges.empty() || cover.ranges.back() != near) cover.ranges.push_back(near);
    at = range.end;
  }
}

PinnedRanges::Cover PinnedRanges::look(uint64_t address, uint64_t bytes) {
  Cover cover;
  for (const HostPages& part : parts_of(address, bytes)) {
    look_at(part, cover);
    if (cover.gap || cover.settling) break;
  }
  return cover;
}

// Everything is covered.
std::shared_ptr<const Pinned> PinnedRanges::together(const Cover& cover, Holds& holds) {
  for (const auto range : cover.ranges) holds.push_back(std::make_shared<Hold>(*this, range));
  for (const auto& hold : holds)
    if (hold->delta() != holds.front()->delta())
      fail(Status::kUnsupported, "cuda: GPUs find neighbouring host memory at {:#x} at addresses apart",
           hold->begin());
  if (holds.size() == 1) return holds.front();
  return std::make_shared<Together>(holds);
}

std::shared_ptr<const Pinned> PinnedRanges::find(Device& device, uint64_t address, uint64_t bytes, Use use) {
  Holds holds;
  const std::lock_guard lock(mutex_);
  const Cover cover = look(address, bytes);
  if (cover.settling) return nullptr;
  if (!cover.gap) return together(cover, holds);
  const auto [begin, end] = pages_around(address, bytes);
  if (overlapping(begin, end) != ranges_.end()) return nullptr;
  return pinned_by_application(device, address, bytes, use);
}

std::shared_ptr<const PinnedRanges::Hold> PinnedRanges::pin(std::unique_lock<std::mutex>& lock,
                                                            Device& device, const HostPages& pages) {
  const auto made = ranges_.emplace(pages.begin, Range{pages.end, 0, nullptr}).first;
  try {
    lock.unlock();
    std::unique_ptr<Pinned> pinned = device.pin(pages.begin, pages.bytes());
    lock.lock();
    made->second.pinned = std::move(pinned);
    auto held = std::make_shared<const Hold>(*this, made);
    settled_.notify_all();
    return held;
  } catch (...) {
    if (!lock.owns_lock()) lock.lock();
    remove(lock, made);
    throw;
  }
}

std::shared_ptr<const Pinned> PinnedRanges::take(Device& device, uint64_t address, uint64_t bytes, Use use) {
  Holds mine;
  Holds holds;
  std::unique_lock lock(mutex_);
  for (;;) {
    const Cover cover = look(address, bytes);
    if (cover.settling) {
      settled_.wait(lock);
      continue;
    }
    if (!cover.gap) return together(cover, holds);
    const auto [begin, end] = pages_around(address, bytes);
    if (overlapping(begin, end) == ranges_.end())
      if (auto theirs = pinned_by_application(device, address, bytes, use)) return theirs;
    mine.push_back(pin(lock, device, *cover.gap));
  }
}

}  // namespace towline::cuda
