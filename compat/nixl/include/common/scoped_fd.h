// Source-compatible with NIXL's header of this name.
#pragma once

#include <unistd.h>

#include <utility>

namespace nixl {

// Owns a file descriptor; -1 if it owns nothing.
class scopedFd {
 public:
  scopedFd() = default;
  explicit scopedFd(int fd) noexcept : fd_(fd) {}
  scopedFd(scopedFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  scopedFd& operator=(scopedFd&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  scopedFd(const scopedFd&) = delete;
  scopedFd& operator=(const scopedFd&) = delete;
  ~scopedFd() { reset(); }

  [[nodiscard]] int get() const noexcept { return fd_; }
  [[nodiscard]] bool valid() const noexcept { return fd_ >= 0; }
  void reset() noexcept {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }

 private:
  int fd_ = -1;
};

}  // namespace nixl
