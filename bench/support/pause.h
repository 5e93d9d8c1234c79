// Waiting for another core: spin politely, and let others run when it takes long.
#pragma once

#include <sched.h>

#include <atomic>
#include <cstdint>

namespace bench {

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  asm volatile("yield");
#endif
}

// Spins; after a while yields the core between looks, so that a machine with more work than cores goes on.
class Spinner {
 public:
  void operator()() {
    if (++turns_ < kTurnsBeforeYield) {
      pause();
    } else {
      sched_yield();
    }
  }

 private:
  static constexpr std::uint32_t kTurnsBeforeYield = 2000;
  std::uint32_t turns_ = 0;
};

// Returns when `value` differs from `seen`: spins for about 50 us, then sleeps until notified.
inline void spin_then_wait(const std::atomic<std::uint64_t>& value, std::uint64_t seen) {
  for (int i = 0; i < 2000; ++i) {
    if (value.load(std::memory_order_acquire) != seen) return;
    pause();
  }
  value.wait(seen, std::memory_order_acquire);
}

}  // namespace bench
