// Shared memory without names: memfd files, sealed against resizing, and the mappings over them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "base/os/unique_fd.h"

namespace towline {

struct MemfdOptions {
  uint64_t huge_page_bytes = 0;  // 0: ordinary pages; else a size the kernel offers (see topology.h)
  bool seal_size = true;         // F_SEAL_SHRINK | F_SEAL_GROW, so that no holder can make another one fault
  bool reserve = true;  // allocate all pages now: an Error here instead of SIGBUS or the OOM killer later
};

// A close-on-exec memfd, which no other user can open, of exactly `bytes` (with huge pages: a multiple of
// their size), shown as /memfd:<name> in /proc. Throws Error naming the sizes and, where memory ran out, the
// limit to look at.
UniqueFd create_memfd(const std::string& name, uint64_t bytes, const MemfdOptions& options = {});

// The seals of a shared memory file; 0 for other files. Does not call the file system, which may be another
// process: safe for any descriptor that another process sent.
bool sealed_against_shrinking(int fd) noexcept;
bool sealed_against_writing(int fd) noexcept;  // except through existing mappings

// Throws Error(kInvalidArgument) unless fd is a file of at least `bytes` that is sealed against shrinking:
// call it before mapping a descriptor from another process.
void require_sealed(int fd, uint64_t bytes);

// Existing writable mappings stay; no process can add one, write to the file or add a seal. For memory that
// one process fills and others only read.
void seal_future_writes(int fd);

enum class MapAccess { kRead, kReadWrite };

// A shared mapping of a file; unmapped when it goes.
class Mapping {
 public:
  Mapping() noexcept = default;
  Mapping(Mapping&& other) noexcept
      : address_(std::exchange(other.address_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Mapping& operator=(Mapping&& other) noexcept {
    if (this != &other) {
      reset();
      address_ = std::exchange(other.address_, nullptr);
      bytes_ = std::exchange(other.bytes_, 0);
    }
    return *this;
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() { reset(); }

  // offset is a multiple of the page size. Throws Error. The descriptor may be closed afterwards.
  static Mapping map_shared(int fd, uint64_t bytes, MapAccess access, uint64_t offset = 0);
  // Private, zeroed memory, in huge pages if the system provides them on request: for a device one piece
  // instead of hundreds. A multiple of the page size. Throws Error.
  static Mapping map_private(uint64_t bytes);

  bool valid() const noexcept { return address_ != nullptr; }
  uint8_t* address() const noexcept { return address_; }
  uint64_t bytes() const noexcept { return bytes_; }
  std::span<uint8_t> span() const noexcept { return {address_, static_cast<std::size_t>(bytes_)}; }

  void reset() noexcept;
  // It stays mapped for the life of the process.
  void leave() noexcept { address_ = nullptr; }

 private:
  Mapping(uint8_t* address, uint64_t bytes) noexcept : address_(address), bytes_(bytes) {}

  uint8_t* address_ = nullptr;
  uint64_t bytes_ = 0;
};

}  // namespace towline
