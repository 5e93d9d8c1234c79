// Carries a plan out by copying, where both sides can be reached by pointers.
#pragma once

#include <towline/towline.h>
#include <towline/plugin/cursor.hpp>

#include <cstdint>

namespace towline {

// Copies bytes [begin, end) of a plan in slices, so that the caller can do other work in between. One thread
// at a time. Nothing is allocated. Where a block overlaps its counterpart the copy is as if through a buffer.
class DirectCopy {
 public:
  struct Slice {
    uint64_t bytes;  // copied by this step
    bool done;
  };

  // deltas: for each region of the remote list what to add to the owner's addresses to get pointers of this
  // process (modulo 2^64); null: nothing. Plan and deltas must outlive the copying. op: towline_op_t.
  DirectCopy(const towline_plan& plan, const uint64_t* deltas, uint64_t begin, uint64_t end,
             uint32_t op) noexcept
      : cursor_(plan, begin, end), deltas_(deltas), read_(op == TOWLINE_READ) {}

  // Copies at most max_bytes more, cut anywhere. Bytes are visible in program order; publish them to another
  // thread or process with a release store.
  Slice step(uint64_t max_bytes) noexcept;

  [[nodiscard]] bool done() const noexcept { return cursor_.done(); }
  [[nodiscard]] uint64_t position() const noexcept {
    return cursor_.position();
  }  // everything before it is copied

 private:
  plugin::Cursor cursor_;
  const uint64_t* deltas_;
  bool read_;
};

// All of it at once; returns the bytes copied.
uint64_t copy_plan(const towline_plan& plan, const uint64_t* deltas, uint64_t begin, uint64_t end,
                   uint32_t op) noexcept;

}  // namespace towline
