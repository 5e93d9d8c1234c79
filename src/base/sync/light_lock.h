// A mutex for locks that one thread takes again and again, and others rarely. Taken by nobody else it is two locked
// instructions, as std::mutex is, but no calls. A thread that finds it taken sleeps.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/clock.h"
#include "base/os/futex.h"

namespace towline {

// Used with std::lock_guard and std::unique_lock. Not recursive; threads get it in no order.
class LightLock {
 public:
  LightLock() = default;
  LightLock(const LightLock&) = delete;
  LightLock& operator=(const LightLock&) = delete;

  void lock() noexcept {
    if (!try_lock()) [[unlikely]]
      sleep_until_taken();
  }
  bool try_lock() noexcept {
    uint32_t state = kFree;
    return state_.compare_exchange_strong(state, kTaken, std::memory_order_acquire,
                                          std::memory_order_relaxed);
  }
  void unlock() noexcept {
    if (state_.exchange(kFree, std::memory_order_release) == kAwaited) [[unlikely]]
      futex_wake(state_, 1);
  }

 private:
  static constexpr uint32_t kFree = 0;
  static constexpr uint32_t kTaken = 1;
  static constexpr uint32_t kAwaited = 2;  // taken, and a thread may sleep

  // The thread that wakes can't know whether others sleep, so it takes the lock as awaited.
  [[gnu::cold, gnu::noinline]] void sleep_until_taken() noexcept {
    while (state_.exchange(kAwaited, std::memory_order_acquire) != kFree)
      futex_wait(state_, kAwaited, kNoDeadline);
  }

  std::atomic<uint32_t> state_{kFree};
};

}  // namespace towline
