// Additions that a backend over tcp's sockets may bring: lanes with a second socket, the payload flow. Null in tcp itself.
//
// Sockets of a connection are numbered in their hellos. Without flows, each is a lane. With them, lane n has the sockets
// 2n, its stream, and 2n + 1, its payload flow; lane 0 begins without, the others come up with both.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/os/socket_address.h"
#include "base/os/stream.h"
#include "framing/lane.h"
#include "towline/plugin/backend.hpp"

namespace towline::tcp {

class Flows {
 public:
  Flows() = default;
  Flows(const Flows&) = delete;
  Flows& operator=(const Flows&) = delete;
  virtual ~Flows() = default;

  // As SocketLane's constructor. Control path, any worker.
  virtual std::unique_ptr<framing::Lane> make_lane(const plugin::Host& host, uint32_t worker, Stream stream,
                                                   bool first, uint32_t frame_bytes,
                                                   const std::string& congestion, towline_ready_fn ready,
                                                   void* argument) = 0;
  // The addresses by which payload has to come in, on the network interface whose NIC receives it; empty: any.
  [[nodiscard]] virtual std::vector<SocketAddress> addresses() const { return {}; }
  // Says in a few words how payload is received.
  [[nodiscard]] virtual std::string how() const = 0;
  // Gives a lane that make_lane() made its payload flow. Throws Error, and then the lane has none.
  virtual void attach(framing::Lane& lane, Stream payload) = 0;
};

}  // namespace towline::tcp
