#include "base/os/unique_fd.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "base/error.h"

namespace towline {
namespace {

void change_flag(int fd, int get, int set, int flag, bool on, const char* what) {
  const int flags = fcntl(fd, get);
  if (flags < 0) fail_errno(errno, "reading flags of file descriptor {} to set {}", fd, what);
  const int wanted = on ? flags | flag : flags & ~flag;
  if (wanted != flags && fcntl(fd, set, wanted) < 0) {
    fail_errno(errno, "setting {} of file descriptor {} to {}", what, fd, on);
  }
}

}  // namespace

void UniqueFd::reset(int fd) noexcept {
  if (fd_ >= 0 && fd_ != fd) {
    const int saved = errno;
    close(fd_);  // on Linux the descriptor is gone even when close fails
    errno = saved;
  }
  fd_ = fd;
}

void set_nonblocking(int fd, bool nonblocking) {
  change_flag(fd, F_GETFL, F_SETFL, O_NONBLOCK, nonblocking, "O_NONBLOCK");
}

void set_close_on_exec(int fd, bool close_on_exec) {
  change_flag(fd, F_GETFD, F_SETFD, FD_CLOEXEC, close_on_exec, "FD_CLOEXEC");
}

UniqueFd duplicate_fd(int fd) {
  const int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (copy < 0) fail_errno(errno, "duplicating file descriptor {}", fd);
  return UniqueFd(copy);
}

uint64_t file_bytes(int fd) {
  struct stat info {};
  if (fstat(fd, &info) != 0) fail_errno(errno, "fstat of file descriptor {}", fd);
  return static_cast<uint64_t>(info.st_size);
}

void write_fully(int fd, std::span<const uint8_t> data) {
  std::size_t done = 0;
  while (done < data.size()) {
    const ssize_t wrote = write(fd, data.data() + done, data.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) {
      fail_errno(errno, "writing {} bytes to file descriptor {}, {} written", data.size(), fd, done);
    }
    done += static_cast<std::size_t>(wrote);
  }
}

std::size_t read_fully(int fd, std::span<uint8_t> data) {
  std::size_t done = 0;
  while (done < data.size()) {
    const ssize_t got = read(fd, data.data() + done, data.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0)
      fail_errno(errno, "reading {} bytes from file descriptor {}, {} read", data.size(), fd, done);
    if (got == 0) break;
    done += static_cast<std::size_t>(got);
  }
  return done;
}

std::optional<std::string> read_text_file(const std::string& path, std::size_t max_bytes) {
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return std::nullopt;
  std::string text;
  char piece[4096];
  while (true) {
    const ssize_t got = read(fd.get(), piece, sizeof piece);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return std::nullopt;
    if (got == 0) return text;
    if (text.size() + static_cast<std::size_t>(got) > max_bytes) return std::nullopt;
    text.append(piece, static_cast<std::size_t>(got));
  }
}

}  // namespace towline
