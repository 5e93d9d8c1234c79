// Copies of pieces so large that neither side would find them in a cache afterwards: with stores that go past
// it, as the C library does for one call of this size. We cut such pieces into slices, and a call for a slice
// would not be large enough for the C library to do so: a third slower when memory is busy.
#pragma once

#include <cstddef>
#include <cstdint>

#include "towline/plugin/cursor.hpp"

namespace towline::shm {

// Pieces from this size on.
inline constexpr uint64_t kStreamedPieceBytes = 32u << 20;

// Copies up to max_bytes more of a plan whose regions are all mapped; deltas as for DirectCopy.
void stream_slice(plugin::Cursor& cursor, const uint64_t* deltas, uint32_t op, uint64_t max_bytes) noexcept;

}  // namespace towline::shm
