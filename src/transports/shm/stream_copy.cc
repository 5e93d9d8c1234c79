#include "transports/shm/stream_copy.h"

#include "base/stream_copy.h"
#include "towline/towline.h"

namespace towline::shm {

void stream_slice(plugin::Cursor& cursor, const uint64_t* deltas, uint32_t op, uint64_t max_bytes) noexcept {
  towline_segment segment;
  while (max_bytes != 0 && cursor.next(&segment, 1, max_bytes) != 0) {
    auto* const local = reinterpret_cast<void*>(segment.local);
    auto* const remote = reinterpret_cast<void*>(segment.remote + deltas[segment.remote_region]);
    if (op == TOWLINE_READ)
      stream_copy(local, remote, segment.length);
    else
      stream_copy(remote, local, segment.length);
    max_bytes -= segment.length;
  }
}

}  // namespace towline::shm
