// Says when allocations fail, in a program of which one source file includes failing_new.h.
#pragma once

#include <atomic>
#include <utility>

namespace towline::support {

inline thread_local int allocations_left = -1;  // of this thread, until they fail; negative: none fails
inline thread_local int failures_left = -1;     // then so many fail; negative: all do

// From here on this thread's allocations fail: the first `after` succeed, then `times` fail (negative: all).
inline void fail_allocations(int after = 0, int times = -1) noexcept {
  allocations_left = after;
  failures_left = times;
}
// From here on none fails. True: the next one would have.
inline bool stop_failing() noexcept { return std::exchange(allocations_left, -1) == 0; }

// The same for all threads of the program together: after `after` more allocations, the next `times` fail.
inline std::atomic<int> anywhere_left{0};   // allocations until all is well again
inline std::atomic<int> anywhere_times{0};  // the last so many of them fail
inline void fail_allocations_anywhere(int after, int times) noexcept {
  anywhere_times.store(times, std::memory_order_relaxed);
  anywhere_left.store(after + times, std::memory_order_release);
}
// True: at least one has failed.
inline bool stop_failing_anywhere() noexcept {
  return anywhere_left.exchange(0, std::memory_order_acq_rel) <
         anywhere_times.load(std::memory_order_relaxed);
}

// Not in this thread from here on, as one of a server that the test brings: its allocations do not count either.
inline thread_local bool spared = false;
inline void spare_this_thread() noexcept { spared = true; }

inline bool fails_anywhere() noexcept {
  if (spared) return false;
  int left = anywhere_left.load(std::memory_order_acquire);
  while (left > 0 && !anywhere_left.compare_exchange_weak(left, left - 1, std::memory_order_acq_rel)) {
  }
  return left > 0 && left <= anywhere_times.load(std::memory_order_relaxed);
}

// Asked once by each allocation.
inline bool allocation_fails() noexcept {
  const bool fails = allocations_left == 0 || fails_anywhere();
  if (allocations_left == 0 && failures_left > 0 && --failures_left == 0) allocations_left = -1;
  if (allocations_left > 0) --allocations_left;
  return fails;
}

}  // namespace towline::support
