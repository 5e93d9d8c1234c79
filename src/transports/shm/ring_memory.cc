#include "transports/shm/ring_memory.h"

#include <linux/magic.h>
#include <sys/vfs.h>

#include <bit>
#include <cerrno>

#include "base/error.h"

namespace towline::shm {

namespace {

uint64_t memory_bytes(uint32_t ring_bytes) noexcept {
  constexpr uint64_t kPage = 4096;
  return (2 * framing::ring_bytes(ring_bytes) + kPage - 1) / kPage * kPage;
}

void check_ring_bytes(uint32_t ring_bytes) {
  if (!std::has_single_bit(ring_bytes) || ring_bytes < kMinRingBytes || ring_bytes > kMaxRingBytes)
    fail(Status::kInvalidArgument, "shm: rings of {} bytes; want a power of two from {} to {}", ring_bytes,
         kMinRingBytes, kMaxRingBytes);
}

}  // namespace

RingMemory RingMemory::create(uint32_t ring_bytes, UniqueFd& fd) {
  check_ring_bytes(ring_bytes);
  const uint64_t bytes = memory_bytes(ring_bytes);
  fd = create_memfd("towline-ring", bytes);
  return {Mapping::map_shared(fd.get(), bytes, MapAccess::kReadWrite), ring_bytes, Side::kConnector};
}

RingMemory RingMemory::adopt(int fd, uint32_t ring_bytes) {
  check_ring_bytes(ring_bytes);
  const uint64_t bytes = memory_bytes(ring_bytes);
  require_sealed(fd, bytes);  // before the file system is asked, which may be another process
  // Huge pages could be missing at the first touch (SIGBUS), other file systems could block it.
  struct statfs file_system {};
  if (fstatfs(fd, &file_system) != 0) fail_errno(errno, "shm: the peer's ring memory");
  if (file_system.f_type != TMPFS_MAGIC)
    fail(Status::kProtocol, "shm: the peer's ring memory is not plain shared memory");
  if (file_bytes(fd) != bytes)
    fail(Status::kProtocol, "shm: the peer's ring memory has {} bytes instead of {}", file_bytes(fd), bytes);
  return {Mapping::map_shared(fd, bytes, MapAccess::kReadWrite), ring_bytes, Side::kAcceptor};
}

}  // namespace towline::shm
