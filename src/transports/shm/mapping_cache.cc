#include "transports/shm/mapping_cache.h"

#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>

#include "base/error.h"

#ifndef FUSE_SUPER_MAGIC
#define FUSE_SUPER_MAGIC 0x65735546
#endif

namespace towline::shm {

namespace {

constexpr long kNfsMagic = 0x6969;

bool pages_may_wait_for_others(const struct statfs& file_system) noexcept {
  return file_system.f_type == FUSE_SUPER_MAGIC || file_system.f_type == kNfsMagic;
}

}  // namespace

MappedRegion MappingCache::map(int fd, uint64_t file_offset, uint64_t bytes, bool writable, bool unsealed) {
  // First of all: what follows asks the file system, and only shared memory is sealed.
  const bool sealed = sealed_against_shrinking(fd);
  if (!sealed && !unsealed)
    fail(Status::kPermissionDenied,
         "shm: the peer's file is not sealed against shrinking (tuning.shm.map_unsealed is off)");
  struct stat status {};
  struct statfs file_system {};
  if (fstat(fd, &status) != 0 || fstatfs(fd, &file_system) != 0)
    fail_errno(errno, "shm: a descriptor that the peer sent");
  if (!S_ISREG(status.st_mode))
    fail(Status::kProtocol, "shm: the peer sent something that is not a plain file");
  if (pages_may_wait_for_others(file_system))
    fail(Status::kUnsupported, "shm: the peer's memory lies on a file system of another process or host");
  const auto size = static_cast<uint64_t>(status.st_size);
  if (bytes == 0 || file_offset > size || bytes > size - file_offset)
    fail(Status::kProtocol, "shm: the peer's file has {} bytes, {} from offset {} were promised", size, bytes,
         file_offset);

  // Whole pages, which are huge on hugetlbfs.
  const auto page = static_cast<uint64_t>(file_system.f_type == HUGETLBFS_MAGIC ? file_system.f_bsize
                                                                                : sysconf(_SC_PAGESIZE));
  const uint64_t begin = file_offset / page * page;
  const uint64_t end = (file_offset + bytes + page - 1) / page * page;
  const Key key{status.st_dev, status.st_ino, begin, end - begin, writable};

  const std::lock_guard lock(mutex_);
  std::erase_if(mappings_, [](const auto& entry) { return entry.second.expired(); });
  std::shared_ptr<const Mapping> mapping;
  if (const auto found = mappings_.find(key); found != mappings_.end()) mapping = found->second.lock();
  if (mapping == nullptr) {
    mapping = std::make_shared<const Mapping>(
        Mapping::map_shared(fd, key.bytes, writable ? MapAccess::kReadWrite : MapAccess::kRead, begin));
    mappings_[key] = mapping;
  }
  return {mapping, mapping->address() + (file_offset - begin), sealed};
}

size_t MappingCache::live() const {
  const std::lock_guard lock(mutex_);
  size_t count = 0;
  for (const auto& entry : mappings_) count += entry.second.expired() ? 0 : 1;
  return count;
}

}  // namespace towline::shm
