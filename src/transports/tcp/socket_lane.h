// A lane over one stream socket, TCP or Unix.
//
// Polled while its worker is busy: a read is one recv that mostly finds something or says EAGAIN, without
// epoll. Only when the worker is about to sleep does the socket's epoll interest matter, and it is changed
// only when it has to be. A socket that has been read for a while leaves epoll until then: otherwise each
// arrival would notify epoll, inside the sender's system call.
//
// Large payload is lent to the kernel where that pays (base/os/lent_writes.h). A socket finds out by trying: after the
// kernel has reported once that it copied nevertheless, or has refused often, everything is copied at once.
//
// Secure connections come in below it, in base/os/stream.h. A possible extension: io_uring replaces the two system
// calls of the stream, under the rules in framing/lane.h.
#pragma once

#include <cstdint>

#include "base/os/lent_writes.h"
#include "base/os/stream.h"
#include "framing/lane.h"
#include "towline/plugin/backend.hpp"
#include "transports/tcp/options.h"

namespace towline::tcp {

// Sets what every connection gets.
void tune(Stream& stream, const Options& options) noexcept;

class SocketLane final : public framing::Lane {
 public:
  // `ready` with `argument` is called on the worker when the socket has something while it is watched. The
  // host outlives it. `congestion`: by the kernel's name; empty: the kernel's choice. A lane that is not the first of its connection is read
  // less often while nothing comes. `lending`: tuning.tcp.zerocopy.
  SocketLane(const plugin::Host& host, uint32_t worker, Stream stream, bool first, uint32_t frame_bytes,
             const std::string& congestion, towline_ready_fn ready, void* argument,
             Zerocopy lending = Zerocopy::kOff);
  ~SocketLane() override { close(); }

  [[nodiscard]] framing::IoResult write(std::span<const iovec> pieces) noexcept override;
  [[nodiscard]] framing::IoResult read(std::span<const iovec> pieces) noexcept override;
  [[nodiscard]] framing::IoResult write_lent(std::span<const iovec> pieces) noexcept override;
  [[nodiscard]] bool lends() const noexcept override { return lending_ != Zerocopy::kOff; }
  [[nodiscard]] uint64_t lent() const noexcept override { return lent_writes_.lent(); }
  [[nodiscard]] uint64_t returned() noexcept override;
  [[nodiscard]] bool arm(bool want_write) noexcept override;
  void disarm() noexcept override {}  // level-triggered interest does no harm while awake
  void close() noexcept override;
  // Resets the connection: the system forgets what it has not sent, instead of sending it for as long as the
  // peer takes. What it still reads holds the socket open until it has let go of it; so it does in close().
  void abandon() noexcept override;
  [[nodiscard]] std::string describe() const override;
  [[nodiscard]] Traits traits() const noexcept override;

 private:
  [[nodiscard]] bool open() const noexcept { return stream_.valid() && !ending_; }
  void end() noexcept;
  void stop_lending(const char* why) noexcept;

  const plugin::Host& host_;
  const uint32_t worker_;
  Stream stream_;
  const bool first_;
  const uint32_t frame_bytes_;
  const towline_ready_fn ready_;
  void* const argument_;
  void rest() noexcept;

  bool known_ = false;        // to the host's epoll
  uint32_t watched_ = 0;      // epoll events; 0: none
  uint32_t empty_reads_ = 0;  // in a row
  uint32_t reads_ = 0;        // that brought something, since the worker was last about to sleep
  Zerocopy lending_;          // kOff from when it was found not to pay
  const char* why_not_ = nullptr;
  LentWrites lent_writes_;
  bool allowed_ = false;  // the kernel takes lent writes from this socket
  bool ending_ = false;   // closed, but for what is lent
  uint32_t refused_ = 0;  // lent writes, in a row
  std::string name_;
};

}  // namespace towline::tcp
