// Times for reports. They are read from the processor's counter, which takes a third of the time that the clock takes, and
// become times of the clock when someone asks.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "base/clock.h"
#include "base/ticks.h"

namespace towline {

// True if the counter has one rate on all processors, asleep or not.
inline bool ticks_are_steady() noexcept {
#if defined(__x86_64__)
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  constexpr unsigned kInvariant = 1U << 8;
  return __get_cpuid(0x80000007, &eax, &ebx, &ecx, &edx) != 0 && (edx & kInvariant) != 0;
#else
  return false;
#endif
}

// Any thread.
class TickClock {
 public:
  explicit TickClock(bool by_ticks = ticks_are_steady()) noexcept : by_ticks_(by_ticks), first_(read()) {}

  // now() is ticks(), or later by one.
  bool by_ticks() const noexcept { return by_ticks_; }
  // Never 0.
  uint64_t now() const noexcept { return by_ticks_ ? ticks() | 1 : monotonic_now_ns(); }

  // Converts what now() returned since this clock was made. The rate is that of all the time since then, so a time is as
  // exact as the clock that is read at both ends.
  class Scale {
   public:
    uint64_t to_ns(uint64_t when) const noexcept {
      const auto since = static_cast<double>(static_cast<int64_t>(when - first_.ticks));
      return first_.ns + static_cast<uint64_t>(static_cast<int64_t>(since * ns_per_tick_));
    }

   private:
    friend class TickClock;
    struct Pair {
      uint64_t ticks;
      uint64_t ns;
    };
    Scale(Pair first, Pair last) noexcept : first_(first) {
      if (last.ticks > first.ticks)
        ns_per_tick_ =
            static_cast<double>(last.ns - first.ns) / static_cast<double>(last.ticks - first.ticks);
    }
    Pair first_;
    double ns_per_tick_ = 1;
  };
  Scale scale() const noexcept { return {first_, read()}; }

 private:
  Scale::Pair read() const noexcept {
    const uint64_t before = now();
    const uint64_t ns = monotonic_now_ns();
    return {before + (now() - before) / 2, ns};
  }

  const bool by_ticks_;
  const Scale::Pair first_;
};

}  // namespace towline
