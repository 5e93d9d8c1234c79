// epoll: one thread waits on many descriptors.
#pragma once

#include <sys/epoll.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/os/unique_fd.h"

namespace towline {

struct PollEvent {
  void* context = nullptr;  // as given to add()
  uint32_t events = 0;      // EPOLLIN, EPOLLOUT, EPOLLERR, EPOLLHUP, EPOLLRDHUP
};

// Any thread may add, modify and remove, also while another waits. The context of a removed descriptor can
// still be among the events of a wait() already under way: free it on the waiting thread.
class Poller {
 public:
  static constexpr std::size_t kMostEventsPerWait = 128;

  Poller();  // throws Error

  // events as for epoll_ctl, EPOLLET and EPOLLONESHOT included. Throw Error.
  void add(int fd, uint32_t events, void* context);
  void modify(int fd, uint32_t events, void* context);

  // Before closing fd. A descriptor that is not there is not an error.
  void remove(int fd) noexcept;

  // Fills out (kMostEventsPerWait at most) and returns how many; 0 on timeout and after a signal.
  // timeout_ns: 0 returns at once, kNoDeadline waits for ever; otherwise never returns early.
  std::size_t wait(std::span<PollEvent> out, uint64_t timeout_ns) noexcept;

  // Readable when wait() would find something: pollers nest.
  int fd() const noexcept { return epoll_.get(); }

 private:
  UniqueFd epoll_;
};

}  // namespace towline
