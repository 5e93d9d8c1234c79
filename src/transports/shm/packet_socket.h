// A watched, nonblocking socket that carries packets with descriptors. It keeps nothing for later: a packet
// leaves at once or not at all.
#pragma once

#include <cstdint>
#include <span>

#include "base/os/unique_fd.h"
#include "towline/plugin/backend.hpp"
#include "transports/shm/wire.h"

namespace towline::shm {

using packets::accept_visitor;
using packets::connect_to;
using packets::kMaxPacketFds;
using packets::listen_on;
using packets::make_socket;
using packets::make_timer;
using packets::open_spare;
using packets::Packet;
using packets::peer_process;
using packets::peer_user;
using packets::PeerProcess;
using packets::receive_packet;
using packets::send_packet;
using packets::socket_alive;
using packets::socket_name;
using packets::sweep_dead_sockets;

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

  // As send_packet. kAgain: the peer has not read what it was sent before.
  Status send(std::span<const uint8_t> packet, std::span<const int> fds = {}) noexcept {
    return is_open() ? send_packet(socket_.get(), packet, fds) : Status::kClosed;
  }
  Status receive(Packet& packet) noexcept { return receive_packet(socket_.get(), packet); }
  // While wanted, `ready` is called with EPOLLOUT when there is room to send.
  void watch_for_room(bool wanted) noexcept;

 private:
  const plugin::Host host_;
  const uint32_t worker_;
  const towline_ready_fn ready_;
  void* const argument_;
  UniqueFd socket_;
  bool shut_ = false;
  uint32_t watched_ = 0;
};

}  // namespace towline::shm
