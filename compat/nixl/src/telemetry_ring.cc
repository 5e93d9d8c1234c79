#include "telemetry_ring.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <new>
#include <stdexcept>

#include <common/scoped_fd.h>

namespace towline::nixl {

// The layout that readers of version 4 know.
struct TelemetryRing::Header {
  std::atomic<size_t> write_position{0};
  std::atomic<size_t> read_position{0};
  std::atomic<uint32_t> version{0};
  uint32_t expected_version = TELEMETRY_VERSION;
  size_t capacity = 0;
  size_t mask = 0;
};

namespace {

[[noreturn]] void refuse_ring(const std::string& file, const char* what) {
  throw std::runtime_error(fmt::format("telemetry buffer '{}': {}: {}", file, what, std::strerror(errno)));
}

}  // namespace

TelemetryRing::TelemetryRing(const std::string& file, size_t events) : mask_(events - 1) {
  static_assert(sizeof(Header) == 40 && sizeof(nixlTelemetryEvent) == 16);
  const ::nixl::scopedFd fd{::open(file.c_str(), O_CREAT | O_RDWR | O_CLOEXEC | O_NOFOLLOW, 0644)};
  if (!fd.valid()) refuse_ring(file, "can't be opened");
  const size_t bytes = sizeof(Header) + events * sizeof(nixlTelemetryEvent);
  // Truncated first, so that a reader of the earlier ring does not take its events for ours.
  if (::ftruncate(fd.get(), 0) != 0 || ::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0)
    refuse_ring(file, "can't be given its size");
  // A store to a file without blocks behind it would end the process when the disk is full.
  if (const int error = ::posix_fallocate(fd.get(), 0, static_cast<off_t>(bytes)); error != 0) {
    errno = error;
    refuse_ring(file, "there is no room for it");
  }
  void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (memory == MAP_FAILED) refuse_ring(file, "can't be mapped");
  header_ = new (memory) Header;
  header_->capacity = events;
  header_->mask = mask_;
  events_ = reinterpret_cast<nixlTelemetryEvent*>(static_cast<char*>(memory) + sizeof(Header));
  header_->version.store(TELEMETRY_VERSION, std::memory_order_release);
}

TelemetryRing::~TelemetryRing() {
  (void)::munmap(header_, sizeof(Header) + (mask_ + 1) * sizeof(nixlTelemetryEvent));
}

bool TelemetryRing::push(const nixlTelemetryEvent& event) noexcept {
  const std::lock_guard lock(mutex_);
  const size_t after = (next_ + 1) & mask_;
  if (after == header_->read_position.load(std::memory_order_acquire)) return false;
  events_[next_] = event;
  next_ = after;
  header_->write_position.store(next_, std::memory_order_release);
  return true;
}

}  // namespace towline::nixl
