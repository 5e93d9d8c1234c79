#include "telemetry_ring.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <new>
#include <stdexcept>

namespace towline::nixl {

namespace {

[[noreturn]] void refuse_ring(const std::string& file, const char* what) {
  throw std::runtime_error(fmt::format("telemetry buffer '{}': {}: {}", file, what, std::strerror(errno)));
}

}  // namespace

TelemetryRing::TelemetryRing(const std::string& file, size_t events) : mask_(events - 1) {
  static_assert(sizeof(nixlTelemetryEvent) == 16);
  if (!take_over(file)) make(file);
}

TelemetryRing::~TelemetryRing() { unmap(); }

size_t TelemetryRing::bytes() const noexcept {
  return sizeof(::nixl::ringHeader) + (mask_ + 1) * sizeof(nixlTelemetryEvent);
}

// False if there is no file, if an agent still writes it, or if it holds another ring.
bool TelemetryRing::take_over(const std::string& file) {
  fd_ = ::nixl::scopedFd{::open(file.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK)};
  if (!fd_.valid()) {
    if (errno == ENOENT) return false;
    refuse_ring(file, "can't be opened");
  }
  struct stat status {};
  if (::fstat(fd_.get(), &status) != 0) refuse_ring(file, "can't be examined");
  if (!S_ISREG(status.st_mode)) {
    errno = EINVAL;
    refuse_ring(file, "is no regular file; remove it, or set another NIXL_TELEMETRY_DIR");
  }
  if (static_cast<size_t>(status.st_size) != bytes() || ::flock(fd_.get(), LOCK_EX | LOCK_NB) != 0)
    return false;
  map(file);
  const size_t write = header_->write_pos.load(std::memory_order_acquire);
  if (header_->version.load(std::memory_order_acquire) != TELEMETRY_VERSION ||
      header_->capacity != mask_ + 1 || header_->mask != mask_ || write > mask_ ||
      header_->read_pos.load(std::memory_order_acquire) > mask_) {
    unmap();
    return false;
  }
  next_ = write;
  return true;
}

// Readers of the file that was there keep it mapped: shortening it would end them with SIGBUS.
void TelemetryRing::make(const std::string& file) {
  if (::unlink(file.c_str()) != 0 && errno != ENOENT) refuse_ring(file, "can't be replaced");
  fd_ = ::nixl::scopedFd{::open(file.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0644)};
  if (!fd_.valid()) refuse_ring(file, "can't be made");
  (void)::flock(fd_.get(), LOCK_EX | LOCK_NB);
  map(file);
  header_ = new (header_)::nixl::ringHeader;
  header_->expected_version = TELEMETRY_VERSION;
  header_->capacity = mask_ + 1;
  header_->mask = mask_;
  header_->version.store(TELEMETRY_VERSION, std::memory_order_release);
}

void TelemetryRing::map(const std::string& file) {
  // A store to a file without blocks behind it would end the process when the disk is full.
  if (const int error = ::posix_fallocate(fd_.get(), 0, static_cast<off_t>(bytes())); error != 0) {
    errno = error;
    refuse_ring(file, "there is no room for it");
  }
  void* const memory = ::mmap(nullptr, bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0);
  if (memory == MAP_FAILED) refuse_ring(file, "can't be mapped");
  header_ = static_cast<::nixl::ringHeader*>(memory);
  events_ = reinterpret_cast<nixlTelemetryEvent*>(static_cast<char*>(memory) + sizeof(::nixl::ringHeader));
}

void TelemetryRing::unmap() noexcept { (void)::munmap(header_, bytes()); }

bool TelemetryRing::push(const nixlTelemetryEvent& event) noexcept {
  const std::lock_guard lock(mutex_);
  const size_t after = (next_ + 1) & mask_;
  if (after == header_->read_pos.load(std::memory_order_acquire)) return false;
  events_[next_] = event;
  next_ = after;
  header_->write_pos.store(next_, std::memory_order_release);
  return true;
}

}  // namespace towline::nixl
