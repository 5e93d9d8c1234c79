// Source-compatible with NIXL's header of this name, for readers: takes events out of the telemetry buffer of an agent.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <atomic>
#include <bit>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "common/scoped_fd.h"

namespace nixl {

// The beginning of a buffer's file. Events follow.
struct ringHeader {
  std::atomic<size_t> write_pos{0};
  std::atomic<size_t> read_pos{0};
  std::atomic<uint32_t> version{0};
  uint32_t expected_version = 0;
  size_t capacity = 0;  // a power of two, of which one place stays empty
  size_t mask = 0;
};
static_assert(sizeof(ringHeader) == 40);

}  // namespace nixl

// One process writes, one reads. The file stays readable when the writer ends.
template <typename T>
class sharedRingBuffer {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  // Throws std::runtime_error. `create` is refused: agents make their buffers.
  sharedRingBuffer(const std::string& name, bool create, int version, size_t /*size*/ = 0) {
    if (create) throw std::invalid_argument("'" + name + "': agents make their buffers, others read them");
    const nixl::scopedFd fd{::open(name.c_str(), O_RDWR | O_CLOEXEC)};
    struct stat status {};
    if (!fd.valid() || ::fstat(fd.get(), &status) != 0) refuse(name, std::strerror(errno));
    bytes_ = static_cast<size_t>(status.st_size);
    if (bytes_ < sizeof(nixl::ringHeader)) refuse(name, "it is too short to be one");
    void* const memory = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
    if (memory == MAP_FAILED) refuse(name, std::strerror(errno));
    header_ = static_cast<nixl::ringHeader*>(memory);
    events_ = reinterpret_cast<T*>(header_ + 1);
    const uint32_t found = this->version();
    capacity_ = header_->capacity;
    std::string wrong;
    if (found != static_cast<uint32_t>(version))
      wrong = "version " + std::to_string(found) + ", not " + std::to_string(version);
    else if (!std::has_single_bit(capacity_) || capacity_ > (bytes_ - sizeof *header_) / sizeof(T))
      wrong = "it is cut short, or is no such buffer";
    if (wrong.empty()) return;
    (void)::munmap(header_, bytes_);
    refuse(name, wrong);
  }
  ~sharedRingBuffer() { (void)::munmap(header_, bytes_); }
  sharedRingBuffer(const sharedRingBuffer&) = delete;
  sharedRingBuffer& operator=(const sharedRingBuffer&) = delete;

  // False if all events have been read.
  bool pop(T& item) {
    const size_t at = header_->read_pos.load(std::memory_order_relaxed) & mask();
    if (at == (header_->write_pos.load(std::memory_order_acquire) & mask())) return false;
    item = events_[at];
    header_->read_pos.store((at + 1) & mask(), std::memory_order_release);
    return true;
  }
  [[nodiscard]] size_t size() const {
    return (header_->write_pos.load(std::memory_order_acquire) -
            header_->read_pos.load(std::memory_order_acquire)) &
           mask();
  }
  [[nodiscard]] bool empty() const { return size() == 0; }
  [[nodiscard]] bool full() const { return size() == mask(); }
  [[nodiscard]] uint32_t version() const { return header_->version.load(std::memory_order_acquire); }
  [[nodiscard]] size_t capacity() const { return capacity_; }

 private:
  [[noreturn]] static void refuse(const std::string& name, const std::string& what) {
    throw std::runtime_error("telemetry buffer '" + name + "': " + what);
  }
  [[nodiscard]] size_t mask() const { return capacity_ - 1; }

  nixl::ringHeader* header_ = nullptr;
  T* events_ = nullptr;
  size_t bytes_ = 0;
  size_t capacity_ = 0;
};
