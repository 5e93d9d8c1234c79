#include "transports/shm/process_vm.h"

#include <cerrno>
#include <cstring>

#include "base/copy/copy.h"
#include "towline/towline.h"

namespace towline::shm {

namespace {

void* pointer(uint64_t address) noexcept { return reinterpret_cast<void*>(address); }

// The pieces of one call. Neighbours are joined on each side by itself: the two sides need not be cut alike.
class Batch {
 public:
  Batch(uint32_t op, pid_t pid) noexcept : read_(op == TOWLINE_READ), pid_(pid) {}

  [[nodiscard]] bool empty() const noexcept { return remote_count_ == 0; }
  [[nodiscard]] bool full() const noexcept { return local_count_ == IOV_MAX || remote_count_ == IOV_MAX; }

  // `position`: of the segment in the plan. Not when full.
  void add(const towline_segment& segment, uint64_t position) noexcept {
    if (local_count_ != 0 && end_of(local_[local_count_ - 1]) == segment.local)
      local_[local_count_ - 1].iov_len += segment.length;
    else
      local_[local_count_++] = {pointer(segment.local), segment.length};
    // Joined only where the plan's positions follow each other, too: a failure must be told by position.
    if (remote_count_ != 0 && end_of(remote_[remote_count_ - 1]) == segment.remote &&
        next_position_ == position)
      remote_[remote_count_ - 1].iov_len += segment.length;
    else {
      positions_[remote_count_] = position;
      remote_[remote_count_++] = {pointer(segment.remote), segment.length};
    }
    next_position_ = position + segment.length;
    bytes_ += segment.length;
  }

  // Moves everything and empties the batch. On failure `position` is of the first byte that was not moved.
  CopyResult flush() noexcept {
    const iovec* local = local_;
    const iovec* remote = remote_;
    size_t local_left = local_count_;
    size_t remote_left = remote_count_;
    uint64_t left = bytes_;
    CopyResult result{next_position_, 0};
    while (left != 0) {
      const ssize_t moved = read_ ? process_vm_readv(pid_, local, local_left, remote, remote_left, 0)
                                  : process_vm_writev(pid_, local, local_left, remote, remote_left, 0);
      if (moved <= 0) {
        if (moved < 0 && errno == EINTR) continue;
        result = {position_of(remote), moved < 0 ? errno : EFAULT};
        break;
      }
      left -= static_cast<uint64_t>(moved);
      if (left == 0) break;
      // A short count ends before the piece that failed, or within it: the next call tells why.
      advance(local_, local, local_left, static_cast<size_t>(moved));
      advance(remote_, remote, remote_left, static_cast<size_t>(moved));
    }
    local_count_ = remote_count_ = 0;
    bytes_ = 0;
    cut_index_ = SIZE_MAX;
    return result;
  }

 private:
  static uint64_t end_of(const iovec& piece) noexcept {
    return reinterpret_cast<uint64_t>(piece.iov_base) + piece.iov_len;
  }

  uint64_t position_of(const iovec* remote) const noexcept {
    const auto index = static_cast<size_t>(remote - remote_);
    const uint64_t moved_of_piece = reinterpret_cast<uint64_t>(remote->iov_base) - moved_from_;
    return positions_[index] + (index == cut_index_ ? moved_of_piece : 0);
  }

  void advance(const iovec* all, const iovec*& at, size_t& count, size_t bytes) noexcept {
    while (count != 0 && bytes >= at->iov_len) {
      bytes -= at->iov_len;
      ++at;
      --count;
    }
    if (count == 0 || bytes == 0) return;
    iovec& piece = const_cast<iovec&>(*at);
    if (all == remote_) {
      const auto index = static_cast<size_t>(at - all);
      if (cut_index_ != index) {
        cut_index_ = index;
        moved_from_ = reinterpret_cast<uint64_t>(piece.iov_base);
      }
    }
    piece.iov_base = static_cast<uint8_t*>(piece.iov_base) + bytes;
    piece.iov_len -= bytes;
  }

  const bool read_;
  const pid_t pid_;
  size_t local_count_ = 0;
  size_t remote_count_ = 0;
  uint64_t bytes_ = 0;
  uint64_t next_position_ = 0;
  size_t cut_index_ = SIZE_MAX;  // of the remote piece that was moved in part, and where it began
  uint64_t moved_from_ = 0;
  iovec local_[IOV_MAX];  // not initialised: most calls use few
  iovec remote_[IOV_MAX];
  uint64_t positions_[IOV_MAX];  // of the remote pieces in the plan
};

int transfer(bool write, pid_t pid, void* local, uint64_t remote, size_t bytes) noexcept {
  const iovec here{local, bytes};
  const iovec there{pointer(remote), bytes};
  const ssize_t moved =
      write ? process_vm_writev(pid, &here, 1, &there, 1, 0) : process_vm_readv(pid, &here, 1, &there, 1, 0);
  if (moved < 0) return errno;
  return static_cast<size_t>(moved) == bytes ? 0 : EFAULT;
}

}  // namespace

int prove_process_vm(pid_t pid, const Proof& proof, const uint64_t incarnation[2]) noexcept {
  constexpr size_t kBytes = 2 * sizeof(uint64_t);
  if (pid <= 0) return ESRCH;
  if (proof.cookie_address == 0 || proof.probe_address == 0) return ENOTSUP;
  uint64_t seen[2] = {};
  if (const int error = transfer(false, pid, seen, proof.cookie_address, kBytes)) return error;
  if (std::memcmp(seen, incarnation, kBytes) != 0) return EBADMSG;
  uint64_t written[2] = {~incarnation[0], ~incarnation[1]};
  if (const int error = transfer(true, pid, written, proof.probe_address, kBytes)) return error;
  if (const int error = transfer(false, pid, seen, proof.probe_address, kBytes)) return error;
  return std::memcmp(seen, written, kBytes) == 0 ? 0 : EBADMSG;
}

int try_range(pid_t pid, uint64_t address, uint64_t bytes) noexcept {
  uint8_t byte = 0;
  if (const int error = transfer(false, pid, &byte, address, 1)) return error;
  return transfer(false, pid, &byte, address + bytes - 1, 1);
}

Status status_from_process_vm(int error) noexcept {
  switch (error) {
    case 0:
      return Status::kOk;
    case ESRCH:
    case EBADMSG:
      return Status::kPeerLost;
    case EPERM:
    case EACCES:
      return Status::kPermissionDenied;
    case EFAULT:
      return Status::kStale;  // the memory behind a registration is gone
    case ENOMEM:
      return Status::kOutOfMemory;
    case ENOSYS:
    case ENOTSUP:
      return Status::kUnsupported;
    default:
      return Status::kIo;
  }
}

const char* process_vm_text(int error) noexcept {
  switch (error) {
    case 0:
      return "works";
    case ESRCH:
      return "peer's pid not visible";
    case EBADMSG:
      return "pid is another process";
    case EPERM:
    case EACCES:
      return "denied (Yama, seccomp or user)";
    case ENOSYS:
      return "no such system call";
    case EFAULT:
      return "memory not accessible";
    case ENOTSUP:
      return "switched off";
    default:
      return "failed";
  }
}

CopyResult copy_piece(uint32_t op, pid_t pid, uint64_t local, uint64_t remote, uint64_t begin,
                      uint64_t end) noexcept {
  while (begin != end) {
    const iovec here{pointer(local + begin), end - begin};
    const iovec there{pointer(remote + begin), end - begin};
    const ssize_t moved = op == TOWLINE_READ ? process_vm_readv(pid, &here, 1, &there, 1, 0)
                                             : process_vm_writev(pid, &here, 1, &there, 1, 0);
    if (moved <= 0 && !(moved < 0 && errno == EINTR)) return {begin, moved < 0 ? errno : EFAULT};
    if (moved > 0) begin += static_cast<uint64_t>(moved);
  }
  return {end, 0};
}

CopyResult copy_slice(plugin::Cursor& cursor, const RegionWay* ways, uint32_t op, pid_t pid,
                      uint64_t max_bytes) noexcept {
  constexpr size_t kMostSegments = 64;
  towline_segment segments[kMostSegments];
  Batch batch{op, pid};
  uint64_t position = cursor.position();
  while (max_bytes != 0) {
    const size_t count = cursor.next(segments, kMostSegments, max_bytes);
    if (count == 0) break;
    for (size_t i = 0; i < count; ++i) {
      const towline_segment& segment = segments[i];
      const RegionWay& way = ways[segment.remote_region];
      if (way.mapped) {
        void* const remote = pointer(segment.remote + way.delta);
        void* const local = pointer(segment.local);
        copy_bytes(op == TOWLINE_READ ? local : remote, op == TOWLINE_READ ? remote : local, segment.length);
      } else {
        if (batch.full()) {
          if (const CopyResult result = batch.flush(); result.error != 0) return result;
        }
        batch.add(segment, position);
      }
      position += segment.length;
      max_bytes -= segment.length;
    }
  }
  if (!batch.empty()) {
    if (const CopyResult result = batch.flush(); result.error != 0) return result;
  }
  return {position, 0};
}

}  // namespace towline::shm
