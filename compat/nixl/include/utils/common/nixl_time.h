// Source-compatible with NIXL's header of this name: the steady clock in whole units, and as a time point.
#pragma once

#include <chrono>
#include <cstdint>

namespace nixlTime {

using namespace std::chrono;  // NOLINT: part of the interface

using ns_t = uint64_t;
using us_t = uint64_t;
using ms_t = uint64_t;
using sec_t = uint64_t;

template <class Unit>
[[nodiscard]] inline uint64_t countOf() noexcept {
  return static_cast<uint64_t>(duration_cast<Unit>(steady_clock::now().time_since_epoch()).count());
}

[[nodiscard]] inline ns_t getNs() noexcept { return countOf<nanoseconds>(); }
[[nodiscard]] inline us_t getUs() noexcept { return countOf<microseconds>(); }
[[nodiscard]] inline ms_t getMs() noexcept { return countOf<milliseconds>(); }
[[nodiscard]] inline sec_t getSec() noexcept { return countOf<seconds>(); }

// On the same time line. The system's clock is fast enough, so no processor counter is calibrated.
[[nodiscard]] inline steady_clock::time_point fastSteadyNow() noexcept { return steady_clock::now(); }
[[nodiscard]] inline bool fastClockUsesHwCounter() noexcept { return false; }

}  // namespace nixlTime
