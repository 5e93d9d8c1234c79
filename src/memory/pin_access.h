// Requests of a RegionTable pin besides TOWLINE_ACCESS_*.
#pragma once

#include <cstdint>

namespace towline {

// The caller can address GPU memory. Without it such a region is refused, since its addresses are no
// pointers.
inline constexpr uint32_t kPinVram = 1u << 16;

}  // namespace towline
