// The single owner of a file descriptor, and small helpers over descriptors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>

namespace towline {

// Closes what it holds. Empty is -1.
class UniqueFd {
 public:
  UniqueFd() noexcept = default;
  explicit UniqueFd(int fd) noexcept : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.release()) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) reset(other.release());
    return *this;
  }
  UniqueFd(const UniqueFd&) = delete;
  UniqueFd& operator=(const UniqueFd&) = delete;
  ~UniqueFd() { reset(); }

  int get() const noexcept { return fd_; }
  bool valid() const noexcept { return fd_ >= 0; }
  explicit operator bool() const noexcept { return valid(); }

  // Gives the descriptor up without closing it.
  [[nodiscard]] int release() noexcept { return std::exchange(fd_, -1); }

  // Closes the one held, if any, and takes fd. Keeps errno.
  void reset(int fd = -1) noexcept;

 private:
  int fd_ = -1;
};

// These throw Error on failure.
void set_nonblocking(int fd, bool nonblocking = true);
void set_close_on_exec(int fd, bool close_on_exec = true);
UniqueFd duplicate_fd(int fd);  // close-on-exec
uint64_t file_bytes(int fd);    // size by fstat

// Blocking; retries after signals and short calls. write_fully throws Error when not everything could be
// written; read_fully returns how many bytes it got before the end of the file.
void write_fully(int fd, std::span<const uint8_t> data);
std::size_t read_fully(int fd, std::span<uint8_t> data);

// The whole of a small file (/proc, /sys, configuration); nullopt when it can't be opened or read, or is
// longer than max_bytes. One trailing newline is kept.
std::optional<std::string> read_text_file(const std::string& path, std::size_t max_bytes = 1 << 20);

}  // namespace towline
