// Sleeping on a 32-bit word, within a process or across processes that map the same memory.
#pragma once

#include <atomic>
#include <cstdint>

namespace towline {

enum class FutexScope {
  kPrivate,  // threads of this process only; cheaper
  kShared,   // any process that maps the word
};

enum class FutexResult {
  kWoken,     // woken, perhaps spuriously: check the word again
  kChanged,   // the word did not hold `expected`
  kTimedOut,  // the deadline passed
};

// Sleeps while word == expected, until a wake or deadline_ns (CLOCK_MONOTONIC, absolute; kNoDeadline: none).
FutexResult futex_wait(const std::atomic<uint32_t>& word, uint32_t expected, uint64_t deadline_ns,
                       FutexScope scope = FutexScope::kPrivate) noexcept;

// Wakes up to count waiters and returns how many.
uint32_t futex_wake(const std::atomic<uint32_t>& word, uint32_t count,
                    FutexScope scope = FutexScope::kPrivate) noexcept;

inline uint32_t futex_wake_all(const std::atomic<uint32_t>& word,
                               FutexScope scope = FutexScope::kPrivate) noexcept {
  return futex_wake(word, INT32_MAX, scope);
}

}  // namespace towline
