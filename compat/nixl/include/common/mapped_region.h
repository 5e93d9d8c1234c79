// Source-compatible with NIXL's header of this name.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <utility>

namespace nixl {

// Owns a mapping of a file's first bytes; nothing if the mapping failed (errno says why) or was given away.
class mappedRegion {
 public:
  mappedRegion() = default;
  mappedRegion(int fd, std::size_t size, int protection, int flags) noexcept {
    void* const mapped = ::mmap(nullptr, size, protection, flags, fd, 0);
    if (mapped == MAP_FAILED) return;
    address_ = mapped;
    size_ = size;
  }
  mappedRegion(mappedRegion&& other) noexcept
      : address_(std::exchange(other.address_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  mappedRegion& operator=(mappedRegion&& other) noexcept {
    if (this != &other) {
      reset();
      address_ = std::exchange(other.address_, nullptr);
      size_ = std::exchange(other.size_, 0);
    }
    return *this;
  }
  mappedRegion(const mappedRegion&) = delete;
  mappedRegion& operator=(const mappedRegion&) = delete;
  ~mappedRegion() { reset(); }

  [[nodiscard]] void* get() const noexcept { return address_; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] bool valid() const noexcept { return address_ != nullptr; }
  void reset() noexcept {
    if (address_ != nullptr) ::munmap(address_, size_);
    address_ = nullptr;
    size_ = 0;
  }

 private:
  void* address_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace nixl
