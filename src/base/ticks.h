// A counter of the processor that is faster to read than the clock, to detect that almost no time has passed.
// Its rate is unknown (1 to 5 GHz) and may differ between processors: do not measure with it.
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
