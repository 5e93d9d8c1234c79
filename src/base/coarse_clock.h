// The clock as it stood at the kernel's last tick, for a few instructions.
#pragma once

#include "base/clock.h"

namespace towline {

// Ticks are at most this far apart.
inline constexpr uint64_t kCoarseNs = 10 * kMillisecondNs;

inline uint64_t coarse_now_ns() noexcept {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return static_cast<uint64_t>(now.tv_sec) * kSecondNs + static_cast<uint64_t>(now.tv_nsec);
}

}  // namespace towline
