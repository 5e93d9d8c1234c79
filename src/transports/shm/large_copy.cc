#include "transports/shm/large_copy.h"

#include <cstring>

#include "base/clock.h"
#include "base/copy/copy.h"
#include "base/copy/stream_copy.h"
#include "towline/towline.h"

namespace towline::shm {

namespace {

constexpr uint64_t kWorthTimingBytes = 256u << 10;
constexpr uint64_t kCostUnitBytes = 1u << 20;

}  // namespace

void LargeCopy::step(plugin::Cursor& cursor, uint64_t piece_bytes, const uint64_t* deltas, uint32_t op,
                     uint64_t max_bytes) noexcept {
  Choice& choice = choices_[piece_bytes >= kLongPieceBytes ? 1 : 0];
  const bool past_caches = choice.past_caches.second();
  auto* copy = copy_bytes;
  if (past_caches) copy = choice.in_lines.second() ? stream_copy : stream_copy_in_pages;

  const uint64_t begin = cursor.position();
  const uint64_t begin_ns = monotonic_now_ns();
  towline_segment segment;
  for (uint64_t left = max_bytes; left != 0 && cursor.next(&segment, 1, left) != 0; left -= segment.length) {
    auto* const local = reinterpret_cast<void*>(segment.local);
    auto* const remote = reinterpret_cast<void*>(segment.remote + deltas[segment.remote_region]);
    copy(op == TOWLINE_READ ? local : remote, op == TOWLINE_READ ? remote : local, segment.length);
  }
  const uint64_t bytes = cursor.position() - begin;
  if (bytes < kWorthTimingBytes) return;
  const uint64_t cost = (monotonic_now_ns() - begin_ns) * kCostUnitBytes / bytes;
  choice.past_caches.took(cost);
  if (past_caches) choice.in_lines.took(cost);
}

}  // namespace towline::shm
