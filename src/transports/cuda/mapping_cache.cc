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

// Makes it without the lock, since others only look. If two threads make the same, the first one's is kept.
template <class Thing, class Make>
std::shared_ptr<const Thing> MappingCache::find_or_make(Known<Thing>& known, const Key& key, Make&& make) {
  const auto look = [&] {
    const std::lock_guard lock(mutex_);
    const auto found = known.find(key);
    return found == known.end() ? nullptr : found->second.lock();
  };
  std::shared_ptr<const Thing> thing = look();
  if (thing != nullptr) return thing;
  std::shared_ptr<const Thing> made = make();
  const std::lock_guard lock(mutex_);
  std::erase_if(known, [](const auto& entry) { return entry.second.expired(); });
  std::weak_ptr<const Thing>& slot = known[key];
  thing = slot.lock();
  if (thing != nullptr) return thing;
  slot = made;
  return made;
}

MappingCache::Way MappingCache::map(const uint64_t incarnation[2], uint32_t gpu,
                                    std::span<const Shared> parts, bool writable) {
  if (parts.front().sharing == Sharing::kHostFile) return map_host_file(gpu, parts.front(), writable);
  const Shared& last = parts.back();
  const uint64_t begin = parts.front().address;
  uint64_t ids = 0;
  for (const Shared& part : parts) ids = (ids ^ part.id) * 0x9e3779b97f4a7c15ULL;
  const Key key{
      {incarnation[0], incarnation[1]}, ids, begin, last.address + last.bytes - begin, {}, gpu, writable};
  std::shared_ptr<const Mapped> mapping = find_or_make(
      mapped_, key, [&]() -> std::shared_ptr<const Mapped> { return device_.map(gpu, parts, writable); });
  const uint64_t delta = mapping->address() - begin;
  return {std::move(mapping), delta};
}

MappingCache::Way MappingCache::map_host_file(uint32_t gpu, const Shared& part, bool writable) {
  struct stat status {};
  if (fstat(part.fd.get(), &status) != 0) fail_errno(errno, "cuda: a descriptor that the peer sent");
  require_sealed(part.fd.get(), part.file_offset + part.bytes);
  const HostPages pages = pages_around(part.file_offset, part.bytes);
  const uint64_t begin = pages.begin;  // clang 14 captures no structured bindings
  const uint64_t end = pages.end;
  const Key key{{}, 0, 0, 0, {status.st_dev, status.st_ino, begin}, gpu, writable};
  Key whole = key;
  whole.bytes = end - begin;
  const std::shared_ptr<const HostFile> file =
      find_or_make(files_, whole, [&]() -> std::shared_ptr<const HostFile> {
        auto made = std::make_shared<HostFile>();
        made->mapping = Mapping::map_shared(part.fd.get(), end - begin, MapAccess::kReadWrite, begin);
        made->pinned = device_.pin(reinterpret_cast<uint64_t>(made->mapping.address()), end - begin);
        return made;
      });
  const uint64_t here = reinterpret_cast<uint64_t>(file->mapping.address()) + (part.file_offset - begin) +
                        file->pinned->delta();
  return {file, here - part.address};
}

size_t MappingCache::live() const {
  const std::lock_guard lock(mutex_);
  size_t count = 0;
  for (const auto& entry : mapped_) count += entry.second.expired() ? 0 : 1;
  for (const auto& entry : files_) count += entry.second.expired() ? 0 : 1;
  return count;
}

}  // namespace towline::cuda
