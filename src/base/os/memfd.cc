#include "base/os/memfd.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <csignal>
#include <ctime>

#include "base/error.h"
#include "base/os/memory_limits.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif
#ifndef MFD_HUGE_SHIFT
#define MFD_HUGE_SHIFT 26
#endif

namespace towline {
namespace {

// The kernel cuts names at 249 bytes by refusing them.
constexpr std::size_t kNameBytes = 240;

std::string describe(const std::string& name, uint64_t bytes, const MemfdOptions& options) {
  if (options.huge_page_bytes == 0) return fmt::format("memfd \"{}\" of {} bytes", name, bytes);
  return fmt::format("memfd \"{}\" of {} bytes in huge pages of {} bytes", name, bytes,
                     options.huge_page_bytes);
}

// Beyond the limit of a file's size, which these files have as well, the kernel does not only refuse: it
// sends a signal that ends the process. While this lives the calling thread is spared it.
class WithoutSizeSignal {
 public:
  WithoutSizeSignal() noexcept {
    sigemptyset(&signal_);
    sigaddset(&signal_, SIGXFSZ);
    sigset_t pending;
    ours_ = sigpending(&pending) == 0 && sigismember(&pending, SIGXFSZ) == 0 &&
            pthread_sigmask(SIG_BLOCK, &signal_, &before_) == 0;
  }
  ~WithoutSizeSignal() {
    if (!ours_) return;
    const timespec at_once = {};
    while (sigtimedwait(&signal_, nullptr, &at_once) > 0) {
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  WithoutSizeSignal(const WithoutSizeSignal&) = delete;
  WithoutSizeSignal& operator=(const WithoutSizeSignal&) = delete;

 private:
  sigset_t signal_;
  sigset_t before_;
  bool ours_;
};

const char* memory_hint(int error, const MemfdOptions& options) {
  if (error == EFBIG)
    return "; the limit of a file's size (ulimit -f, RLIMIT_FSIZE) holds for shared memory too: raise it";
  if (error != ENOSPC && error != ENOMEM) return "";
  return options.huge_page_bytes != 0
             ? "; too few free huge pages of this size: see /sys/kernel/mm/hugepages/*/nr_hugepages"
             : "; shared memory is used up: see df /dev/shm, the memory cgroup's limit (memory.max) and free";
}

unsigned memfd_flags(const MemfdOptions& options) {
  unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  if (options.huge_page_bytes != 0) {
    flags |= MFD_HUGETLB;
    flags |= static_cast<unsigned>(std::countr_zero(options.huge_page_bytes)) << MFD_HUGE_SHIFT;
  }
  return flags;
}

void check_sizes(const std::string& what, uint64_t bytes, const MemfdOptions& options) {
  if (bytes == 0 || bytes > static_cast<uint64_t>(INT64_MAX)) {
    fail(Status::kInvalidArgument, "{}: the size must be between 1 and 2^63 - 1", what);
  }
  const uint64_t page = options.huge_page_bytes;
  if (page != 0 && (!std::has_single_bit(page) || bytes % page != 0)) {
    fail(Status::kInvalidArgument, "{}: the size must be a multiple of the page, and that a power of two",
         what);
  }
}

// fallocate on ordinary pages takes memory until the kernel starts killing, so more than there is has to be
// refused before. Huge pages come from a pool, which answers for itself.
void reserve_memory(int fd, uint64_t bytes, const std::string& what, const MemfdOptions& options) {
  const uint64_t available = available_memory_bytes();
  if (options.huge_page_bytes == 0 && bytes > available) {
    fail(Status::kNoSpace, "reserving the memory of {}: only {} bytes are available{}", what, available,
         memory_hint(ENOSPC, options));
  }
  int result = 0;
  do {
    result = fallocate(fd, 0, 0, static_cast<off_t>(bytes));
  } while (result != 0 && errno == EINTR);
  if (result != 0) {
    const int error = errno;
    fail_errno(error, "reserving the memory of {}{}", what, memory_hint(error, options));
  }
}

}  // namespace

UniqueFd create_memfd(const std::string& name, uint64_t bytes, const MemfdOptions& options) {
  const std::string what = describe(name, bytes, options);
  check_sizes(what, bytes, options);
  const WithoutSizeSignal without_size_signal;
  UniqueFd fd(memfd_create(name.substr(0, kNameBytes).c_str(), memfd_flags(options)));
  if (!fd) {
    const int error = errno;
    fail_errno(error, "creating {}{}", what, memory_hint(error, options));
  }
  // Else a process of another user that was sent the file to read could open it anew for writing.
  if (fchmod(fd.get(), S_IRUSR | S_IWUSR) != 0) fail_errno(errno, "restricting {} to its user", what);
  if (ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    const int error = errno;
    fail_errno(error, "sizing {}{}", what, memory_hint(error, options));
  }
  if (options.reserve) reserve_memory(fd.get(), bytes, what, options);
  if (options.seal_size && fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
    fail_errno(errno, "sealing the size of {}", what);
  }
  return fd;
}

bool sealed_against_shrinking(int fd) noexcept {
  const int seals = fcntl(fd, F_GET_SEALS);
  return seals >= 0 && (seals & F_SEAL_SHRINK) != 0;
}

bool sealed_against_writing(int fd) noexcept {
  const int seals = fcntl(fd, F_GET_SEALS);
  return seals >= 0 && (seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE)) != 0;
}

void require_sealed(int fd, uint64_t bytes) {
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0) {
    fail(Status::kInvalidArgument, "file descriptor {} can't be sealed, so it is not safe to map: {}", fd,
         errno_text(errno));
  }
  if ((seals & F_SEAL_SHRINK) == 0) {
    fail(Status::kInvalidArgument, "file descriptor {} is not sealed against shrinking (seals {:#x})", fd,
         seals);
  }
  const uint64_t there = file_bytes(fd);
  if (there < bytes) {
    fail(Status::kInvalidArgument, "file descriptor {} has {} bytes where {} are needed", fd, there, bytes);
  }
}

void seal_future_writes(int fd) {
  if (fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) != 0) {
    fail_errno(errno, "sealing file descriptor {} against further writers", fd);
  }
}

Mapping Mapping::map_shared(int fd, uint64_t bytes, MapAccess access, uint64_t offset) {
  if (bytes == 0) fail(Status::kInvalidArgument, "mapping 0 bytes of file descriptor {}", fd);
  const int protection = access == MapAccess::kRead ? PROT_READ : PROT_READ | PROT_WRITE;
  void* address = mmap(nullptr, bytes, protection, MAP_SHARED, fd, static_cast<off_t>(offset));
  if (address == MAP_FAILED) {
    fail_errno(errno, "mapping {} bytes of file descriptor {} from offset {} to {}", bytes, fd, offset,
               access == MapAccess::kRead ? "read" : "read and write");
  }
  return Mapping(static_cast<uint8_t*>(address), bytes);
}

Mapping Mapping::map_private(uint64_t bytes) {
  constexpr uint64_t kHugePage = 2 << 20;
  // Newer kernels align by themselves; what is too much is given back.
  void* const wide =
      mmap(nullptr, bytes + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (wide == MAP_FAILED) fail_errno(errno, "mapping {} bytes of memory", bytes);
  auto* const begin = static_cast<uint8_t*>(wide);
  const uint64_t before = (kHugePage - reinterpret_cast<uint64_t>(wide) % kHugePage) % kHugePage;
  if (before != 0) munmap(begin, before);
  munmap(begin + before + bytes, kHugePage - before);
  (void)madvise(begin + before, bytes, MADV_HUGEPAGE);  // else in pages as they come
  return Mapping(begin + before, bytes);
}

void Mapping::reset() noexcept {
  if (address_ != nullptr) munmap(address_, bytes_);
  address_ = nullptr;
  bytes_ = 0;
}

}  // namespace towline
