// A store over TCP: one rank serves, all ask. The protocol is the part of torch's TCPStore that takes
// setting, getting and waiting, so that ranks under torchrun meet in the store that is there already, and
// torch's in ours.
#pragma once

#include <memory>
#include <string>

#include "collectives/store.h"

namespace towline::collectives {

// endpoint: "host:port". `serve`: this rank serves, unless somebody does already (another communicator of
// this process, torchrun). Throws Error.
std::shared_ptr<Store> open_tcp_store(const std::string& endpoint, bool serve, Deadline deadline);

// A server on any port, for tests and `serve`. Stops when it goes.
class TcpStoreServer {
 public:
  explicit TcpStoreServer(const std::string& endpoint);
  ~TcpStoreServer();
  uint16_t port() const noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace towline::collectives
