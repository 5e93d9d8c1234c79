// Finds the file behind an address, from /proc/self.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>

#include "base/os/unique_fd.h"

namespace towline {

// One mapping of this process.
struct MemoryMapping {
  uint64_t begin = 0;
  uint64_t end = 0;
  uint64_t offset = 0;  // of `begin` in the file
  uint64_t inode = 0;   // 0: anonymous
  dev_t device = 0;     // as the mapping shows it; some file systems show another one by fstat
  bool readable = false;
  bool writable = false;
  bool executable = false;
  bool shared = false;
  std::string name;  // path, "[heap]", "[anon:...]", "" ; " (deleted)" kept
};

// The lines of /proc/self/maps; nullopt when the text is not one.
std::optional<MemoryMapping> parse_maps_line(const std::string& line);

// Reads the process's mappings in order of address, from the one that holds `address` (or the next above it).
// One system call each where the kernel has PROCMAP_QUERY (6.11), the text of /proc/self/maps otherwise.
class MappingReader {
 public:
  enum class Source { kBest, kText };
  explicit MappingReader(uint64_t address, Source source = Source::kBest);
  // Nullopt at the end, or when /proc is not there: then problem() says why.
  std::optional<MemoryMapping> next();
  [[nodiscard]] const std::string& problem() const noexcept { return problem_; }

 private:
  std::optional<MemoryMapping> query();
  std::optional<MemoryMapping> read_line();

  UniqueFd maps_;
  uint64_t address_;
  bool by_query_;
  std::string buffer_;  // text not yet parsed
  size_t parsed_ = 0;   // of buffer_
  std::string problem_;
};

// A shared mapping of one file over a whole range, with consecutive offsets.
struct SharedMapping {
  bool found = false;
  uint64_t offset = 0;  // in the file, of the range's first byte
  MemoryMapping first;  // the mapping the range begins in
  std::string reason;   // when not found
};
SharedMapping find_shared_mapping(const void* address, uint64_t bytes);

// A descriptor for the file of a mapping, from one of these sources: among this process's open descriptors,
// by the mapping's path, or through /proc/self/map_files. Verified to be that very file. Only regular files
// (memfd, shm, tmpfs, disk), never devices.
struct MappedFile {
  UniqueFd fd;  // close-on-exec, our own; invalid when none was found
  bool writable = false;
  uint64_t bytes = 0;  // of the file now
  std::string reason;  // when none was found
};
MappedFile open_mapped_file(const MemoryMapping& mapping);

}  // namespace towline
