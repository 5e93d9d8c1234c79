#include "plan/direct_copy.h"

#include <cstring>

#include "base/copy/copy.h"

namespace towline {

namespace {

constexpr size_t kWindow = 64;

}  // namespace

// memmove rather than memcpy: in the C libraries we build on it is the same code after one comparison.
DirectCopy::Slice DirectCopy::step(uint64_t max_bytes) noexcept {
  const uint64_t begin = cursor_.position();
  uint64_t left = max_bytes;
  towline_segment window[kWindow];
  while (const size_t count = cursor_.next(window, kWindow, left)) {
    for (size_t i = 0; i < count; ++i) {
      const towline_segment& segment = window[i];
      const uint64_t delta = deltas_ == nullptr ? 0 : deltas_[segment.remote_region];
      auto* const local = reinterpret_cast<uint8_t*>(segment.local);
      auto* const remote = reinterpret_cast<uint8_t*>(segment.remote + delta);
      if (read_) {
        copy_bytes(local, remote, segment.length);
      } else {
        copy_bytes(remote, local, segment.length);
      }
    }
    left = max_bytes - (cursor_.position() - begin);
    if (cursor_.done()) break;
  }
  return {cursor_.position() - begin, cursor_.done()};
}

uint64_t copy_plan(const towline_plan& plan, const uint64_t* deltas, uint64_t begin, uint64_t end,
                   uint32_t op) noexcept {
  DirectCopy copy(plan, deltas, begin, end, op);
  return copy.step(UINT64_MAX).bytes;
}

}  // namespace towline
