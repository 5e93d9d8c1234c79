// Writes to a TCP stream that the kernel does not copy (MSG_ZEROCOPY): it reads their bytes when it sends them, and
// again when it sends them a second time. It numbers these calls from 0 on, and reports on the socket's error queue up
// to which call it has let go of them: when the peer's kernel has acknowledged them, and the NIC has sent them.
//
// What loops back within a host, or crosses a veth or tun device, is copied nevertheless; the report says so.
//
// Used by the thread that writes the stream. A socket with a report wakes epoll with EPOLLERR, whatever is watched.
#pragma once

#include <cstdint>
#include <span>

#include "base/os/stream.h"

namespace towline {

class LentWrites {
 public:
  static constexpr uint32_t kMost = 64;  // calls whose bytes may be lent at one time

  // Before the first write. 0, or an errno: this socket or kernel has no such writes.
  static int allow(int fd) noexcept;

  // As Stream::write. `control`: a control message that goes with the call, or none. Failures that are no fault of the stream: ENOBUFS (too many bytes are lent, by the limits on
  // locked memory and on socket options), EFAULT (memory that can't be lent, or is not there): an ordinary write
  // may succeed, or tells.
  [[nodiscard]] StreamResult write(int fd, std::span<const iovec> pieces,
                                   std::span<const uint8_t> control = {}) noexcept;

  [[nodiscard]] uint64_t lent() const noexcept { return lent_; }  // calls so far
  [[nodiscard]] uint64_t returned() const noexcept {
    return returned_;
  }  // of the first so many the bytes are free
  [[nodiscard]] bool all_returned() const noexcept { return lent_ == returned_; }
  [[nodiscard]] bool full() const noexcept { return lent_ - returned_ == kMost; }
  // The kernel has copied something, now or earlier.
  [[nodiscard]] bool copied() const noexcept { return copied_; }

  // Reads the reports.
  void collect(int fd) noexcept;

  // Resets the connection and drops what has not been sent: the reports about that come at once.
  static void drop(int fd) noexcept;

 private:
  void note(uint32_t first, uint32_t last) noexcept;

  uint64_t lent_ = 0;
  uint64_t returned_ = 0;
  uint64_t ahead_ = 0;  // bit i: of call returned_ + i the bytes are free
  bool copied_ = false;
};

}  // namespace towline
