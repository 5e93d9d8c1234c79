// A slice of a plan's segments, and how it is cut into operations that one system call can do.
//
// Neighbours in the plan that follow each other in one file become one vectored operation. For direct I/O a
// segment falls into pieces: the aligned middle moves directly between memory and device; unaligned ends use
// a bounce buffer, or, if a WRITE shares a page with other bytes, the page cache.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>

#include "storage/posix/file.h"
#include "towline/plugin/cursor.hpp"

namespace towline::posix {

class Job;

inline constexpr uint32_t kSliceSegments = 64;
inline constexpr uint64_t kSliceBytes = 1 << 20;
inline constexpr uint64_t kBounceBytes = kSliceBytes + (128 << 10);  // with a sector at both ends

struct Slice {
  towline_segment segments[kSliceSegments];
  uint32_t first = 0;
  uint32_t count = 0;     // segments from first on
  uint64_t position = 0;  // of the first one's first byte in the plan

  [[nodiscard]] bool empty() const noexcept { return count == 0; }
  void skip(uint64_t bytes) noexcept;
};

// The work of one system call, or of several when it comes short.
struct Operation {
  Operation* next = nullptr;
  Job* job = nullptr;
  const File* file = nullptr;
  int fd = -1;
  int buffer = -1;  // the kernel queue's number of the memory, when it is one piece
  bool write = false;
  bool in_direct_queue = false;  // in the kernel by the queue of direct I/O that need not wait
  uint8_t retries = 0;
  uint32_t local_region = 0;  // by the plan's number, of the first piece
  uint64_t offset = 0;        // in the file, of the first byte moved
  uint64_t bytes = 0;         // to move
  uint64_t needed = 0;        // of these, for success: a direct read of a whole sector may end with the file
  uint64_t done = 0;          // moved
  uint64_t position = 0;      // in the plan
  uint64_t plan_bytes = 0;    // of the plan
  uint8_t* bounce = nullptr;
  uint64_t bounce_skip = 0;   // bytes of the bounce buffer before the plan's
  uint8_t* memory = nullptr;  // the plan's, when there is a bounce buffer
  uint32_t first_iov = 0;
  uint32_t iov_count = 0;
  iovec iov[kSliceSegments];

  [[nodiscard]] bool finished() const noexcept { return done >= needed; }
  // A direct READ that stopped within a sector met the end of the file; what is left could not be asked for.
  [[nodiscard]] bool met_end() const noexcept {
    return !write && fd == file->direct_fd() && done % file->offset_alignment() != 0;
  }
  // So many bytes more were moved.
  void advance(uint64_t moved) noexcept;
  // The number of the plan's bytes that have certainly been moved.
  [[nodiscard]] uint64_t plan_done() const noexcept;
  // The system call for what is left; bytes moved or -errno. EINTR is tried again.
  [[nodiscard]] int64_t attempt(int flags) const noexcept;
};

// An attempt with RWF_NOWAIT ended so: it would have to wait, or the file system can't tell.
[[nodiscard]] constexpr bool would_wait(int64_t result) noexcept {
  return result == -EAGAIN || result == -EOPNOTSUPP;
}

// The source of bounce buffers; null: no memory.
class BounceBuffers;

// The files by the plan's number of the region.
class Cutter {
 public:
  Cutter(Slice& slice, const File* const* files, bool write) noexcept
      : slice_(slice), files_(files), write_(write) {}

  // The next operation out of the slice. False: the slice is empty. An operation that needs a bounce buffer
  // has `memory` set and `bounce` null: see take_bounce.
  bool next(Operation& operation) noexcept;

 private:
  bool next_direct(Operation& operation, const File& file) noexcept;
  void merge(Operation& operation, const File& file) noexcept;

  Slice& slice_;
  const File* const* files_;
  const bool write_;
};

// Gives the operation its bounce buffer, filled for a WRITE; false: no memory.
[[nodiscard]] bool take_bounce(BounceBuffers& buffers, Operation& operation) noexcept;
// After it ended: a READ's bytes go where they belong, the buffer goes back.
void drop_bounce(BounceBuffers& buffers, Operation& operation) noexcept;

}  // namespace towline::posix
