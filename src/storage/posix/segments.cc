#include "storage/posix/segments.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/copy/copy.h"
#include "storage/posix/bounce.h"

namespace towline::posix {

namespace {

uint64_t round_down(uint64_t value, uint64_t to) noexcept { return value - value % to; }
uint64_t round_up(uint64_t value, uint64_t to) noexcept { return round_down(value + to - 1, to); }

}  // namespace

void Slice::skip(uint64_t bytes) noexcept {
  position += bytes;
  while (bytes != 0 && count != 0) {
    towline_segment& segment = segments[first];
    if (bytes < segment.length) {
      segment.local += bytes;
      segment.remote += bytes;
      segment.length -= bytes;
      return;
    }
    bytes -= segment.length;
    ++first;
    --count;
  }
}

// ---- operations

void Operation::advance(uint64_t moved) noexcept {
  done += moved;
  while (moved != 0 && iov_count != 0) {
    iovec& piece = iov[first_iov];
    if (moved < piece.iov_len) {
      piece.iov_base = static_cast<uint8_t*>(piece.iov_base) + moved;
      piece.iov_len -= moved;
      return;
    }
    moved -= piece.iov_len;
    ++first_iov;
    --iov_count;
  }
}

uint64_t Operation::plan_done() const noexcept {
  if (done <= bounce_skip) return 0;
  return std::min(done - bounce_skip, plan_bytes);
}

int64_t Operation::attempt(int flags) const noexcept {
  if (met_end()) return 0;
  for (;;) {
    const auto at = static_cast<off_t>(offset + done);
    const auto count = static_cast<int>(iov_count);
    const iovec* pieces = iov + first_iov;
    ssize_t result = 0;
    if (count == 1 && flags == 0) {  // a tenth cheaper for a page
      result = write ? ::pwrite(fd, pieces->iov_base, pieces->iov_len, at)
                     : ::pread(fd, pieces->iov_base, pieces->iov_len, at);
    } else {
      result = write ? ::pwritev2(fd, pieces, count, at, flags) : ::preadv2(fd, pieces, count, at, flags);
    }
    if (result >= 0) return result;
    if (errno != EINTR) return -errno;
  }
}

// ---- cutting

bool Cutter::next(Operation& operation) noexcept {
  if (slice_.empty()) return false;
  const towline_segment& segment = slice_.segments[slice_.first];
  const File& file = *files_[segment.remote_region];
  operation.next = nullptr;
  operation.file = &file;
  operation.buffer = -1;
  operation.retries = 0;
  operation.local_region = segment.local_region;
  operation.write = write_;
  operation.done = 0;
  operation.position = slice_.position;
  operation.offset = segment.remote;
  operation.bounce = nullptr;
  operation.bounce_skip = 0;
  operation.memory = nullptr;
  operation.first_iov = 0;
  if (file.direct()) return next_direct(operation, file);
  operation.fd = file.fd();
  operation.iov_count = 1;
  operation.iov[0] = {reinterpret_cast<void*>(segment.local), segment.length};
  operation.bytes = segment.length;
  slice_.position += segment.length;
  ++slice_.first;
  --slice_.count;
  merge(operation, file);
  operation.needed = operation.plan_bytes = operation.bytes;
  return true;
}

// Takes on what follows in the file; for direct I/O only whole aligned segments.
void Cutter::merge(Operation& operation, const File& file) noexcept {
  const uint32_t unit = write_ ? file.write_unit() : file.offset_alignment();
  const uint64_t offset_mask = file.direct() ? unit - 1 : 0;
  const uint64_t memory_mask = file.direct() ? file.memory_alignment() - 1 : 0;
  while (slice_.count != 0) {
    const towline_segment& segment = slice_.segments[slice_.first];
    if (segment.remote != operation.offset + operation.bytes || files_[segment.remote_region] != &file ||
        (segment.length & offset_mask) != 0 || (segment.local & memory_mask) != 0)
      return;
    operation.iov[operation.iov_count++] = {reinterpret_cast<void*>(segment.local), segment.length};
    operation.bytes += segment.length;
    slice_.position += segment.length;
    ++slice_.first;
    --slice_.count;
  }
}

bool Cutter::next_direct(Operation& operation, const File& file) noexcept {
  const towline_segment segment = slice_.segments[slice_.first];
  const uint64_t sector = write_ ? file.write_unit() : file.offset_alignment();
  const uint64_t before = segment.remote % sector;  // bytes of the first one that are not ours
  const bool memory_fits = segment.local % file.memory_alignment() == 0;
  operation.fd = file.direct_fd();
  operation.iov_count = 1;
  if (before == 0 && memory_fits && segment.length >= sector) {
    const uint64_t bytes = round_down(segment.length, sector);
    operation.iov[0] = {reinterpret_cast<void*>(segment.local), bytes};
    operation.bytes = bytes;
    slice_.skip(bytes);
    if (bytes == segment.length) merge(operation, file);
    operation.needed = operation.plan_bytes = operation.bytes;
    return true;
  }
  uint64_t bytes = segment.length;
  if (before != 0) {
    const uint64_t head = std::min(sector - before, segment.length);
    const bool middle_fits = (segment.local + head) % file.memory_alignment() == 0;
    if (write_ || middle_fits) bytes = head;
  } else if (write_) {
    bytes = segment.length < sector ? segment.length : round_down(segment.length, sector);
  }
  operation.plan_bytes = bytes;
  if (write_ && (before != 0 || bytes % sector != 0)) {  // an edge
    operation.fd = file.fd();
    operation.iov[0] = {reinterpret_cast<void*>(segment.local), bytes};
    operation.bytes = operation.needed = bytes;
  } else {
    operation.memory = reinterpret_cast<uint8_t*>(segment.local);
    operation.bounce_skip = before;
    operation.offset = segment.remote - before;
    operation.bytes = round_up(before + bytes, sector);
    operation.needed = before + bytes;
  }
  slice_.skip(bytes);
  return true;
}

// ---- bouncing

bool take_bounce(BounceBuffers& buffers, Operation& operation) noexcept {
  if (operation.memory == nullptr) return true;
  operation.bounce = buffers.take();
  if (operation.bounce == nullptr) return false;
  if (operation.write) copy_bytes(operation.bounce, operation.memory, operation.plan_bytes);
  operation.iov[0] = {operation.bounce, operation.bytes};
  return true;
}

void drop_bounce(BounceBuffers& buffers, Operation& operation) noexcept {
  if (operation.bounce == nullptr) return;
  if (!operation.write)
    copy_bytes(operation.memory, operation.bounce + operation.bounce_skip, operation.plan_done());
  buffers.give(operation.bounce);
  operation.bounce = nullptr;
}

}  // namespace towline::posix
