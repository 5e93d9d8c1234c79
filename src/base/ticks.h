// A counter of the processor that is quicker to read than the clock, for telling that next to no time has
// passed. Its rate is not known (1 to 5 GHz), nor is it the same on every processor: nothing is measured with
// it.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace towline {

#if defined(__x86_64__)
inline constexpr bool kHasTicks = true;
inline uint64_t ticks() noexcept { return __rdtsc(); }
#else
inline constexpr bool kHasTicks = false;
inline uint64_t ticks() noexcept { return 0; }
#endif

}  // namespace towline
