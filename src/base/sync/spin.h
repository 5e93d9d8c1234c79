// Waiting a bounded while without sleeping.
#pragma once

#include <sched.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace towline {

// Separates what different threads write. Two lines, since adjacent ones are prefetched as a pair.
inline constexpr std::size_t kCacheLineBytes = 64;
inline constexpr std::size_t kNoSharingBytes = 128;

inline void cpu_pause() noexcept {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#else
  asm volatile("" ::: "memory");
#endif
}

// Orders everything before it against everything after, including stores against later loads: "announce, then
// check" needs this on both sides. ThreadSanitizer knows no fences, so there it is a read-modify-write that
// orders as much on the machines it runs on.
inline void full_fence() noexcept {
#if defined(__SANITIZE_THREAD__)
  std::atomic<uint32_t> word{0};
  word.fetch_add(1, std::memory_order_seq_cst);
#else
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

// First pauses, then yields, then returns false: the caller sleeps on a futex or a poller. SpinWait spin;
// while (!ready()) if (!spin.again()) return sleep_until_ready();
class SpinWait {
 public:
  explicit constexpr SpinWait(uint32_t pauses = 256, uint32_t yields = 16) noexcept
      : pauses_(pauses), limit_(pauses + yields) {}

  // False once the bound is reached; it then stays false until reset().
  bool again() noexcept {
    if (turns_ >= limit_) return false;
    if (turns_++ < pauses_) {
      cpu_pause();
    } else {
      sched_yield();
    }
    return true;
  }

  void reset() noexcept { turns_ = 0; }

 private:
  uint32_t pauses_;
  uint32_t limit_;
  uint32_t turns_ = 0;
};

}  // namespace towline
