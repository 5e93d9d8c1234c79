// The configuration of one instance, keys "tcp.*"; README.md explains them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/os/socket_address.h"
#include "framing/fault_options.h"
#include "secure/keys.h"
#include "towline/plugin/backend.hpp"
#include "transports/tcp/sources.h"

namespace towline::tcp {

// Whether large payload is lent to the kernel instead of copied.
enum class Zerocopy : uint8_t {
  kAuto,  // until the kernel reports that it copies nevertheless
  kOn,
  kOff,
};

struct Options {
  std::vector<Endpoint>
      listen;              // empty: takes no connections; the agent's own addresses unless said otherwise
  bool any_user = false;   // serves processes of other users of this host
  Sources::Limits limits;  // of accepted sockets
  PortRange ports;
  std::string advertise;
  std::string unix_dir;        // empty: no Unix socket
  uint32_t sockets = 0;        // lanes of a connection once it carries bulk data; 0: by sockets_to()
  uint64_t bulk_bytes = 0;     // moved in both directions until it counts as that
  uint64_t frame_bytes = 0;    // payload of one frame; 0: by frame_bytes_to()
  uint64_t socket_buffer = 0;  // SO_SNDBUF and SO_RCVBUF; 0: the kernel tunes them
  std::string congestion;      // control, by the kernel's name; empty: as congestion_for() has it
  Zerocopy zerocopy = Zerocopy::kAuto;
  uint64_t handshake_timeout_ns = 0;
  uint64_t user_timeout_ns = 0;  // sent data that stays unacknowledged so long breaks a socket
  bool checksum = false;
  std::vector<SocketAddress>
      own_addresses;  // sockets to other hosts use one of these; empty: the kernel chooses
  framing::FaultOptions faults;
  secure::MaybeKeys keys;  // of every connection

  // For a connection to this peer.
  [[nodiscard]] uint32_t sockets_to(const SocketAddress& peer) const noexcept;
  [[nodiscard]] uint32_t frame_bytes_to(const SocketAddress& peer) const noexcept;

  // Throws plugin::Failure, naming the value.
  // `name`: of the backend, before the dot of each key.
  static Options read(const plugin::Host& host, const std::string& name);
};

}  // namespace towline::tcp
