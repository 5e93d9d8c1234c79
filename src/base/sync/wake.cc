#include "base/sync/wake.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>

#include "base/error.h"

namespace towline {

EventFd::EventFd() : fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!fd_) fail_errno(errno, "creating an eventfd");
}

void EventFd::signal() noexcept {
  const int saved = errno;
  const uint64_t one = 1;
  // EAGAIN means that 2^64 - 2 signals wait already: it is readable, and that is enough.
  while (write(fd_.get(), &one, sizeof one) < 0 && errno == EINTR) {
  }
  errno = saved;
}

uint64_t EventFd::drain() noexcept {
  uint64_t count = 0;
  ssize_t got = 0;
  do {
    got = read(fd_.get(), &count, sizeof count);
  } while (got < 0 && errno == EINTR);
  return got == static_cast<ssize_t>(sizeof count) ? count : 0;
}

}  // namespace towline
