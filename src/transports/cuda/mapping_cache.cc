#include "transports/cuda/mapping_cache.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>

#include "base/error.h"

namespace towline::cuda {

// A peer's host memory: mapped here, and pinned for our GPUs.
struct MappingCache::HostFile {
  Mapping mapping;
  std::unique_ptr<Pinned> pinned;
};

MappingCache::Way MappingCache::map(const uint64_t incarnation[2], uint32_t gpu,
                                    std::span<const Shared> parts, bool writable) {
  if (parts.front().sharing == Sharing::kHostFile) return map_host_file(gpu, parts.front(), writable);
  const Shared& last = parts.back();
  const uint64_t begin = parts.front().address;
  uint64_t ids = 0;
  for (const Shared& part : parts) ids = (ids ^ part.id) * 0x9e3779b97f4a7c15ULL;
  const Key key{
      {incarnation[0], incarnation[1]}, ids, begin, last.address + last.bytes - begin, {}, gpu, writable};
  const std::lock_guard lock(mutex_);
  std::erase_if(mapped_, [](const auto& entry) { return entry.second.expired(); });
  auto& slot = mapped_[key];
  std::shared_ptr<const Mapped> mapping = slot.lock();
  if (mapping == nullptr) {
    mapping = device_.map(gpu, parts, writable);
    slot = mapping;
  }
  const uint64_t delta = mapping->address() - begin;
  return {std::move(mapping), delta};
}

MappingCache::Way MappingCache::map_host_file(uint32_t gpu, const Shared& part, bool writable) {
  struct stat status {};
  if (fstat(part.fd.get(), &status) != 0) fail_errno(errno, "cuda: a descriptor that the peer sent");
  require_sealed(part.fd.get(), part.file_offset + part.bytes);
  const auto [begin, end] = pages_around(part.file_offset, part.bytes);
  const Key key{{}, 0, 0, 0, {status.st_dev, status.st_ino, begin}, gpu, writable};
  Key whole = key;
  whole.bytes = end - begin;
  const std::lock_guard lock(mutex_);
  std::erase_if(files_, [](const auto& entry) { return entry.second.expired(); });
  auto& slot = files_[whole];
  std::shared_ptr<const HostFile> file = slot.lock();
  if (file == nullptr) {
    auto made = std::make_shared<HostFile>();
    made->mapping = Mapping::map_shared(part.fd.get(), end - begin, MapAccess::kReadWrite, begin);
    made->pinned = device_.pin(reinterpret_cast<uint64_t>(made->mapping.address()), end - begin);
    file = made;
    slot = file;
  }
  const uint64_t here = reinterpret_cast<uint64_t>(file->mapping.address()) + (part.file_offset - begin) +
                        file->pinned->delta();
  return {std::move(file), here - part.address};
}

size_t MappingCache::live() const {
  const std::lock_guard lock(mutex_);
  size_t count = 0;
  for (const auto& entry : mapped_) count += entry.second.expired() ? 0 : 1;
  for (const auto& entry : files_) count += entry.second.expired() ? 0 : 1;
  return count;
}

}  // namespace towline::cuda
