// A watched, nonblocking socket that carries packets with descriptors, and keeps those that do not fit for
// later.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "base/unique_fd.h"
#include "towline/plugin/backend.hpp"
#include "transports/shm/endpoint.h"

namespace towline::shm {

// The worker, under its lock.
class PacketSocket {
 public:
  PacketSocket(const plugin::Host& host, uint32_t worker, towline_ready_fn ready, void* argument) noexcept
      : host_(host), worker_(worker), ready_(ready), argument_(argument) {}
  PacketSocket(const PacketSocket&) = delete;
  PacketSocket& operator=(const PacketSocket&) = delete;
  ~PacketSocket() { shut(); }

  // Takes the socket and watches it. Throws plugin::Failure when the host can't.
  void open(UniqueFd socket);
  // Ends the conversation and stops watching. The descriptor stays ours until this goes: others may be
  // polling it.
  void shut() noexcept;
  [[nodiscard]] bool is_open() const noexcept { return socket_.valid() && !shut_; }
  [[nodiscard]] int fd() const noexcept { return socket_.get(); }

  // Sends now or later, in order. The descriptors given away are duplicated only if they have to wait. kOk,
  // kClosed, kIo, or kLimitExceeded: the peer takes nothing.
  Status send(std::vector<uint8_t> packet, std::vector<int> fds = {});
  // Sends what waits, when the socket is writable.
  Status flush() noexcept;
  Status receive(Packet& packet) noexcept { return receive_packet(socket_.get(), packet); }
  // So many packets wait that none should be read that want an answer.
  [[nodiscard]] bool congested() const noexcept { return waiting_.size() >= kMostWaiting / 2; }

 private:
  static constexpr size_t kMostWaiting = 128;
  struct Waiting {
    std::vector<uint8_t> packet;
    std::vector<UniqueFd> fds;
  };

  void watch_for_room() noexcept;

  const plugin::Host host_;
  const uint32_t worker_;
  const towline_ready_fn ready_;
  void* const argument_;
  UniqueFd socket_;
  bool shut_ = false;
  std::deque<Waiting> waiting_;
  uint32_t watched_ = 0;
};

}  // namespace towline::shm
