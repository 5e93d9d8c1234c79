#include "streams.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "failure.h"

namespace tool {

void fill_closed_streams() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (fcntl(fd, F_GETFD) >= 0) continue;
    // open() returns the lowest free number, which is this one.
    (void)open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
  }
}

void tell(std::FILE* stream, std::string_view text) noexcept {
  (void)std::fwrite(text.data(), 1, text.size(), stream);
  (void)std::fflush(stream);
}

void finish_output(std::FILE* stream) {
  const bool failed = std::ferror(stream) != 0;
  errno = 0;
  if (std::fflush(stream) == 0 && !failed) return;
  throw Failure{fmt::format("the output can't be written{}{}", errno != 0 ? ": " : "",
                            errno != 0 ? std::strerror(errno) : "")};
}

}  // namespace tool
