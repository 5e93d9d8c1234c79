// Memory that other processes on this host can map: allocated here, moved there in place, or shared already.
//
// The file behind an address belongs to the process, not to an agent: memory is allocated before any agent
// exists, and registered with several, at different times and in parts. So the process has one registry of
// the ranges that Towline itself put onto a memfd. It only saves the search through /proc (mapping_lookup.h):
// it holds no descriptor open longer than its memory lives, and its answers do not depend on the caller.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>

#include "base/os/memfd.h"
#include "base/os/unique_fd.h"

namespace towline {

// A file that backs memory. Regions of one mapping share it, so that 100,000 of them need one descriptor.
class SharedFile {
 public:
  enum class Maker { kTowline, kOther };
  SharedFile(UniqueFd fd, bool writable, Maker maker)
      : fd_(std::move(fd)), writable_(writable), maker_(maker) {}
  [[nodiscard]] int fd() const noexcept { return fd_.get(); }
  [[nodiscard]] bool writable() const noexcept { return writable_; }
  // Nobody but Towline opens or maps it: seals can be added to it.
  [[nodiscard]] bool ours() const noexcept { return maker_ == Maker::kTowline; }

 private:
  UniqueFd fd_;
  bool writable_;  // the descriptor is; a peer that maps it for writing needs that
  Maker maker_;
};

struct SharedRange {
  std::shared_ptr<const SharedFile> file;  // null: not found
  uint64_t offset = 0;                     // of the range's first byte in the file
};

// Zeroed, page-aligned, sealed against resizing; unmapped when it goes. Any thread.
class SharedMemory {
 public:
  // bytes: 1 to 2^63 - 1, rounded up to whole pages inside. flags: 0 or TOWLINE_ALLOCATE_HUGE, which takes
  // huge pages of the smallest size the kernel offers and fails where the pool has too few. All pages are
  // taken at once: an Error here (naming sizes and limits), never a SIGBUS later.
  static std::unique_ptr<SharedMemory> allocate(uint64_t bytes, uint32_t flags);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  [[nodiscard]] void* address() const noexcept { return mapping_.address(); }
  [[nodiscard]] uint64_t bytes() const noexcept { return bytes_; }  // as asked for

 private:
  SharedMemory(Mapping mapping, uint64_t bytes) noexcept : mapping_(std::move(mapping)), bytes_(bytes) {}

  Mapping mapping_;
  uint64_t bytes_;
};

// Private memory that lies on a memfd for as long as this lives; see share_in_place.
class InPlaceShare {
 public:
  // Moves the memory back to private pages, contents kept: no process that mapped the memfd reaches it any
  // more. No thread may use the memory during this. The memory stays as it is, and valid, if the application
  // has unmapped or remapped it meanwhile or memory runs out.
  ~InPlaceShare();
  InPlaceShare(const InPlaceShare&) = delete;
  InPlaceShare& operator=(const InPlaceShare&) = delete;

  [[nodiscard]] void* address() const noexcept { return address_; }
  [[nodiscard]] uint64_t bytes() const noexcept { return bytes_; }

 private:
  friend std::shared_ptr<InPlaceShare> share_in_place(void* address, uint64_t bytes);
  InPlaceShare(void* address, uint64_t bytes, std::shared_ptr<const SharedFile> file) noexcept;

  void* address_;
  uint64_t bytes_;
  std::shared_ptr<const SharedFile> file_;
  pid_t process_;   // a child of fork does not undo it
  uint64_t forks_;  // children made before
};

// Moves page-aligned private anonymous memory onto a memfd at the same address, contents kept, so that peers
// can map it (TOWLINE_REGION_SHARE). It goes slice by slice, so that memory is not needed twice. Asked again
// for memory that is shared already by an InPlaceShare or a SharedMemory that covers it, it gives what is
// there (null for the latter).
//
// Contract: no thread writes the memory during the call; a writer gets SIGSEGV instead of a lost write.
// Memory registered with a GPU or a NIC, or being read into by the kernel, must not be moved: the device
// would continue with the old pages. mlock, madvise and NUMA policy are not carried over: set them
// afterwards. A child of fork shares the memory afterwards rather than getting a copy.
//
// Throws Error: kInvalidArgument for memory not aligned to pages, not mapped, partly mapped, read-only or
// guarded, mapped from a file, shared already, or a stack, naming the mapping; kOutOfMemory with everything
// as it was before.
std::shared_ptr<InPlaceShare> share_in_place(void* address, uint64_t bytes);

// The file that backs [address, address + bytes), if all of it lies in one shared mapping: ranges that
// Towline made are known, others are looked up (mapping_lookup.h) and their file is kept for as long as
// someone uses it. Otherwise `reason` receives a few words. Never throws for memory, only for want of it.
SharedRange find_shared_range(const void* address, uint64_t bytes, std::string& reason);

}  // namespace towline
