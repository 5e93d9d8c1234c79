// A lane of two sockets: one for headers and small payload, as tcp's, and one for large payload (payload_socket.h).
#pragma once

#include <memory>
#include <string>

#include "transports/tcp/socket_lane.h"
#include "transports/tcpx/payload_socket.h"

namespace towline::tcpx {

class FlowLane final : public framing::Lane {
 public:
  // As SocketLane.
  FlowLane(const plugin::Host& host, uint32_t worker, Stream stream, bool first, uint32_t frame_bytes,
           const std::string& congestion, towline_ready_fn ready, void* argument, uint32_t least_bytes,
           bool keep_fragments, FlowTotals* totals, BoundMemory* bound);
  ~FlowLane() override { close(); }

  // The second socket. Control path.
  void attach(UniqueFd socket, std::unique_ptr<Source> source) {
    payload_.attach(std::move(socket), std::move(source));
  }

  framing::IoResult write(std::span<const iovec> pieces) noexcept override;
  framing::IoResult read(std::span<const iovec> pieces) noexcept override { return stream_.read(pieces); }
  // Of the payload flow: the stream lends nothing.
  [[nodiscard]] uint64_t lent() const noexcept override { return payload_.lent(); }
  [[nodiscard]] uint64_t returned() noexcept override { return payload_.returned(); }
  [[nodiscard]] bool arm(bool want_write) noexcept override;
  void disarm() noexcept override { stream_.disarm(); }
  void close() noexcept override;
  void abandon() noexcept override;
  [[nodiscard]] std::string describe() const override;
  [[nodiscard]] Traits traits() const noexcept override { return stream_.traits(); }
  [[nodiscard]] framing::PayloadFlow* payload_flow() noexcept override { return &payload_; }

 private:
  // A descriptor of the payload flow's in the host's epoll.
  struct Watched {
    bool known = false;
    uint32_t events = 0;
  };

  [[nodiscard]] bool watch(int fd, uint32_t wanted, Watched& watched) noexcept;
  void unwatch() noexcept;

  const plugin::Host& host_;
  const uint32_t worker_;
  const towline_ready_fn ready_;
  void* const argument_;
  tcp::SocketLane stream_;
  PayloadSocket payload_;
  bool stream_wants_write_ = false;
  Watched socket_;
  Watched source_;  // where the source wakes us by something else
};

}  // namespace towline::tcpx
