#include "plan/direct_copy.h"

#include <cstring>

#include "base/copy/copy.h"

namespace towline {

namespace {

constexpr size_t kWindow = 64;

// A list that is one row of blocks, a stride apart: its blocks' addresses need no cursor.
struct Row {
  uint8_t* first = nullptr;
  uint64_t stride = 0;

  [[nodiscard]] static bool is_one(const towline_list& list) noexcept {
    return list.block_length != 0 && list.flat == nullptr && list.extent_count == 1 &&
           list.extents->dimensions <= 1;
  }
  Row(const towline_list& list, uint64_t delta) noexcept
      : first(reinterpret_cast<uint8_t*>(list.extents->address + delta)), stride(list.extents->stride[0]) {}
  [[nodiscard]] uint8_t* at(uint64_t block) const noexcept { return first + block * stride; }
};

// Blocks of a row without gaps that follow one another on both sides are one piece.
void copy_rows(const towline_plan& plan, const Row& from, const Row& to, bool read) noexcept {
  const uint64_t length = plan.block_length;
  const bool joins =
      plan.local_step == 1 && plan.remote_step == 1 && from.stride == length && to.stride == length;
  const uint64_t from_step = (read ? plan.remote_step : plan.local_step) * from.stride;
  const uint64_t to_step = (read ? plan.local_step : plan.remote_step) * to.stride;
  for (uint64_t r = 0; r < plan.run_count; ++r) {
    const towline_run run = plan.runs[r];
    const uint8_t* source = from.at(read ? run.remote_block : run.local_block);
    uint8_t* target = to.at(read ? run.local_block : run.remote_block);
    if (joins) {
      copy_bytes(target, source, run.count * length);
      continue;
    }
    for (uint32_t i = 0; i < run.count; ++i, source += from_step, target += to_step)
      copy_bytes(target, source, length);
  }
}

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
  if (begin == 0 && end == plan.bytes && plan.block_length != 0 && Row::is_one(*plan.local) &&
      Row::is_one(*plan.remote)) {
    const bool read = op == TOWLINE_READ;
    const Row local(*plan.local, 0);
    const Row remote(*plan.remote, deltas == nullptr ? 0 : deltas[plan.remote->extents->region]);
    copy_rows(plan, read ? remote : local, read ? local : remote, read);
    return plan.bytes;
  }
  DirectCopy copy(plan, deltas, begin, end, op);
  return copy.step(UINT64_MAX).bytes;
}

}  // namespace towline
