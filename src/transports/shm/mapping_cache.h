// Other processes' memory, mapped here from descriptors they sent. Regions of one file and range share a
// mapping; it goes when the last import and the last prepared plan that use it are gone.
#pragma once

#include <sys/types.h>

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "base/os/memfd.h"

namespace towline::shm {

// A region as mapped here.
struct MappedRegion {
  std::shared_ptr<const Mapping> mapping;
  uint8_t* address = nullptr;  // of the region's first byte
  bool sealed = false;         // against shrinking
};

// Any thread; control path.
class MappingCache {
 public:
  // Maps `bytes` from `file_offset` of a file that a peer sent, for writing too if asked. Throws Error when
  // the file is shorter, not a plain file, or lies on a file system where touching a page may wait for some
  // process (FUSE). A file that is not sealed against shrinking is taken when `unsealed` allows it; a process
  // that shortens it later ends this one (SIGBUS).
  MappedRegion map(int fd, uint64_t file_offset, uint64_t bytes, bool writable, bool unsealed);

  [[nodiscard]] size_t live() const;  // mappings in use

 private:
  struct Key {
    dev_t device;
    ino_t inode;  // not reused while the mapping holds the file
    uint64_t offset;
    uint64_t bytes;
    bool writable;
    friend auto operator<=>(const Key&, const Key&) = default;
  };

  mutable std::mutex mutex_;
  std::map<Key, std::weak_ptr<const Mapping>> mappings_;
};

}  // namespace towline::shm
