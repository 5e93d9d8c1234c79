// Everything that waits or measures takes a Clock, so that simulations control time.
#pragma once

#include <atomic>
#include <compare>
#include <cstdint>
#include <ctime>

namespace towline {

// A deadline that never comes, and a timeout that never ends.
inline constexpr uint64_t kNoDeadline = UINT64_MAX;

inline constexpr uint64_t kMicrosecondNs = 1'000;
inline constexpr uint64_t kMillisecondNs = 1'000'000;
inline constexpr uint64_t kSecondNs = 1'000'000'000;

// Nanoseconds of CLOCK_MONOTONIC. No system call in practice (vDSO).
inline uint64_t monotonic_now_ns() noexcept {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * kSecondNs + static_cast<uint64_t>(now.tv_nsec);
}

// Never goes backwards. Any thread may call it.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual uint64_t now_ns() const noexcept = 0;
};

class SystemClock final : public Clock {
 public:
  uint64_t now_ns() const noexcept override { return monotonic_now_ns(); }
};

// Stands still until told to move. Any thread may call it.
class VirtualClock final : public Clock {
 public:
  explicit VirtualClock(uint64_t start_ns = 0) noexcept : now_ns_(start_ns) {}

  uint64_t now_ns() const noexcept override { return now_ns_.load(std::memory_order_relaxed); }
  void advance(uint64_t ns) noexcept { now_ns_.fetch_add(ns, std::memory_order_relaxed); }

  // A time before now_ns() is ignored: clocks never go backwards.
  void set(uint64_t ns) noexcept {
    uint64_t seen = now_ns_.load(std::memory_order_relaxed);
    while (seen < ns && !now_ns_.compare_exchange_weak(seen, ns, std::memory_order_relaxed)) {
    }
  }

 private:
  std::atomic<uint64_t> now_ns_;
};

// An absolute time on one clock; the default never comes.
class Deadline {
 public:
  constexpr Deadline() noexcept = default;

  static constexpr Deadline never() noexcept { return Deadline(); }
  static constexpr Deadline at(uint64_t ns) noexcept { return Deadline(ns); }

  // Saturates: a timeout too long to represent, kNoDeadline among them, never comes.
  static constexpr Deadline after(uint64_t now_ns, uint64_t timeout_ns) noexcept {
    return Deadline(timeout_ns > kNoDeadline - now_ns ? kNoDeadline : now_ns + timeout_ns);
  }
  static Deadline after(const Clock& clock, uint64_t timeout_ns) noexcept {
    return after(clock.now_ns(), timeout_ns);
  }

  constexpr uint64_t ns() const noexcept { return ns_; }
  constexpr bool is_never() const noexcept { return ns_ == kNoDeadline; }
  constexpr bool passed(uint64_t now_ns) const noexcept { return !is_never() && now_ns >= ns_; }

  // Nanoseconds left at now_ns: 0 once passed, kNoDeadline when it never comes.
  constexpr uint64_t remaining_ns(uint64_t now_ns) const noexcept {
    if (is_never()) return kNoDeadline;
    return now_ns >= ns_ ? 0 : ns_ - now_ns;
  }

  friend constexpr auto operator<=>(Deadline, Deadline) noexcept = default;

 private:
  explicit constexpr Deadline(uint64_t ns) noexcept : ns_(ns) {}

  uint64_t ns_ = kNoDeadline;
};

}  // namespace towline
