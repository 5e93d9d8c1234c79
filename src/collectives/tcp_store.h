// A store over TCP: one rank serves, all ask. The protocol is the part of torch's TCPStore that takes
// setting, getting and waiting, so that ranks under torchrun meet in the store that is there already, and
// torch's in ours.
#pragma once

#include <memory>
#include <string>

#include "collectives/store.h"

namespace towline::collectives {

// endpoint: "host:port". `serve`: this rank serves, unless somebody does already (another communicator of
// this process, torchrun): at that address alone where the host is a number or "localhost", and at every
// address of this host where it is a name, since others may know it by another address. Throws Error.
std::shared_ptr<Store> open_tcp_store(const std::string& endpoint, bool serve, Deadline deadline);

// A server that listens there and nowhere else. Stops when it goes.
class TcpStoreServer {
 public:
  // A client has so long to send the rest of a request that it has begun, and to take its answers.
  static constexpr uint64_t kPatienceNs = 60 * kSecondNs;
  explicit TcpStoreServer(const std::string& endpoint, uint64_t patience_ns = kPatienceNs);
  ~TcpStoreServer();
  uint16_t port() const noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace towline::collectives
