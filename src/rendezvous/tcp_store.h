// A store over TCP: one rank serves, all are clients. The protocol is the part of torch's TCPStore for
// setting, getting and waiting, so that ranks under torchrun can use its existing store, and torch can use
// this one.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "rendezvous/store.h"
#include "secure/keys.h"

namespace towline::rendezvous {

// endpoint: "host:port". `serve`: this rank serves, unless there is already a server (of another communicator
// of this process, or torchrun's). It listens at that address only if the host is a number or "localhost",
// and at every address of this host if it is a name, since others may know it by another address. `meanwhile` as for
// open_store(). With keys all connections are secured: torch's stores and clients have none, and are refused. Throws
// Error.
std::shared_ptr<Store> open_tcp_store(const std::string& endpoint, bool serve, Deadline deadline,
                                      const std::function<void()>& meanwhile = {},
                                      const secure::MaybeKeys& keys = {});

// A server that listens at exactly that address. Its destructor stops it.
class TcpStoreServer {
 public:
  // The time limit for a client to complete a request and to read its answers.
  static constexpr uint64_t kPatienceNs = 60 * kSecondNs;
  explicit TcpStoreServer(const std::string& endpoint, uint64_t patience_ns = kPatienceNs,
                          secure::MaybeKeys keys = {});
  ~TcpStoreServer();
  uint16_t port() const noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace towline::rendezvous
