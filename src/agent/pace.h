// Limits of bandwidth, as token buckets kept in one word each: the time at which the bytes let through so far will have
// gone at the limit's rate. Bytes may begin when that time has come; they move it on by their size.
//
// Exactness: bytes go in slices of a quarter of a millisecond, and half a millisecond is saved up at most, so
// that a worker that comes late catches up. In any 10 ms at most 10.75 ms worth of bytes begin.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>

#include "base/clock.h"

namespace towline {

class Pace {
 public:
  static constexpr uint64_t kSavedNs = 500 * kMicrosecondNs;
  static constexpr uint64_t kSliceNs = 250 * kMicrosecondNs;
  static constexpr uint64_t kLeastSliceBytes = 4096;

  // 0: none. Any thread. Returns the rate before.
  uint64_t set(uint64_t bytes_per_s) noexcept {
    next_ns_.store(0, std::memory_order_relaxed);
    return rate_.exchange(bytes_per_s, std::memory_order_relaxed);
  }
  [[nodiscard]] uint64_t rate() const noexcept { return rate_.load(std::memory_order_relaxed); }
  // When bytes may begin; not later than now: at once.
  [[nodiscard]] uint64_t opens_ns() const noexcept {
    return rate() == 0 ? 0 : next_ns_.load(std::memory_order_relaxed);
  }
  // The bytes that may begin at once. Whole pages.
  [[nodiscard]] uint64_t slice_bytes() const noexcept {
    const uint64_t rate = this->rate();
    if (rate == 0) return UINT64_MAX;
    return std::max(rate / (kSecondNs / kSliceNs) / kLeastSliceBytes * kLeastSliceBytes, kLeastSliceBytes);
  }
  // These bytes begin now.
  void charge(uint64_t bytes, uint64_t now_ns) noexcept {
    const uint64_t rate = this->rate();
    if (rate == 0) return;
    const double exact_ns =
        static_cast<double>(bytes) * static_cast<double>(kSecondNs) / static_cast<double>(rate);
    const auto cost_ns = static_cast<uint64_t>(std::min(exact_ns, 1e18));
    const uint64_t earliest_ns = now_ns > kSavedNs ? now_ns - kSavedNs : 0;
    uint64_t seen = next_ns_.load(std::memory_order_relaxed);
    while (!next_ns_.compare_exchange_weak(seen, std::max(seen, earliest_ns) + cost_ns,
                                           std::memory_order_relaxed)) {
    }
  }

 private:
  std::atomic<uint64_t> rate_{0};
  std::atomic<uint64_t> next_ns_{0};
};

// An agent's.
struct Limits {
  Pace all;
  std::array<Pace, 2> by_priority;  // bulk, latency
  std::atomic<uint32_t> count{0};   // of limits that are set: of the agent, its peers and groups

  [[nodiscard]] bool any() const noexcept { return count.load(std::memory_order_relaxed) != 0; }
  // `pace`: one of these. True: there was no limit before.
  bool set(Pace& pace, uint64_t bytes_per_s) noexcept {
    const bool was = pace.set(bytes_per_s) != 0;
    if (was == (bytes_per_s != 0)) return false;
    if (!was) return count.fetch_add(1, std::memory_order_relaxed) == 0;
    count.fetch_sub(1, std::memory_order_relaxed);
    return false;
  }
};

}  // namespace towline
