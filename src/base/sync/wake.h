// Waking a thread that sleeps in a poller.
#pragma once

#include <cstdint>

#include "base/os/unique_fd.h"

namespace towline {

// A non-blocking, close-on-exec eventfd. signal() and drain() may be called by any thread, and signal() also
// in signal handlers.
class EventFd {
 public:
  EventFd();                                                                    // throws Error
  explicit EventFd(UniqueFd fd) noexcept : fd_(static_cast<UniqueFd&&>(fd)) {}  // one received from a peer

  // Makes fd() readable. Signals that nobody drained yet add up.
  void signal() noexcept;

  // Makes fd() unreadable and returns how many signals there were; 0 when none.
  uint64_t drain() noexcept;

  int fd() const noexcept { return fd_.get(); }

 private:
  UniqueFd fd_;
};

}  // namespace towline
