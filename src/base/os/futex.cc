#include "base/os/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <ctime>

#include "base/check.h"
#include "base/clock.h"

namespace towline {
namespace {

static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t));

long futex(const std::atomic<uint32_t>& word, int operation, uint32_t value, const timespec* timeout,
           FutexScope scope) noexcept {
  if (scope == FutexScope::kPrivate) operation |= FUTEX_PRIVATE_FLAG;
  return syscall(SYS_futex, &word, operation, value, timeout, nullptr, FUTEX_BITSET_MATCH_ANY);
}

}  // namespace

FutexResult futex_wait(const std::atomic<uint32_t>& word, uint32_t expected, uint64_t deadline_ns,
                       FutexScope scope) noexcept {
  timespec deadline{};
  const timespec* timeout = nullptr;
  if (deadline_ns != kNoDeadline) {
    deadline.tv_sec = static_cast<time_t>(deadline_ns / kSecondNs);
    deadline.tv_nsec = static_cast<long>(deadline_ns % kSecondNs);
    timeout = &deadline;
  }
  // The bitset form, since its timeout is an absolute CLOCK_MONOTONIC time.
  if (futex(word, FUTEX_WAIT_BITSET, expected, timeout, scope) == 0) return FutexResult::kWoken;
  switch (errno) {
    case EAGAIN:
      return FutexResult::kChanged;
    case ETIMEDOUT:
      return FutexResult::kTimedOut;
    case EINTR:
      return FutexResult::kWoken;
    default:
      TOWLINE_CHECK(false, "futex wait: errno {}", errno);
      return FutexResult::kWoken;
  }
}

uint32_t futex_wake(const std::atomic<uint32_t>& word, uint32_t count, FutexScope scope) noexcept {
  if (count > INT_MAX) count = INT_MAX;
  const long woken = futex(word, FUTEX_WAKE, count, nullptr, scope);
  return woken < 0 ? 0 : static_cast<uint32_t>(woken);
}

}  // namespace towline
