// Waiting for what a gate let through before it was closed.
#pragma once

#include "base/clock.h"
#include "base/spin.h"
#include "transports/cuda/device.h"

namespace towline::cuda {

inline constexpr uint64_t kQuietWithinNs = 10 * kSecondNs;

// False: it still moves. That is so only where the GPU has other work for very long. On a GPU that is broken
// nothing moves.
inline bool wait_until_quiet(const Gate& gate, Lane& lane) noexcept {
  SpinWait spin;
  const uint64_t until_ns = monotonic_now_ns() + kQuietWithinNs;
  while (!gate.quiet()) {
    if (spin.again()) continue;
    const Code code = lane.state();
    if (code != 0 && code != Lane::kBusy) return true;
    if (monotonic_now_ns() >= until_ns) return false;
    cpu_pause();
  }
  return true;
}

}  // namespace towline::cuda
