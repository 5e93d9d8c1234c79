// The built-in exchange of metadata: a client sends its blob (or none) and gets this agent's.
//
// One thread owns a Listener, and its ready callbacks run on it; nothing here blocks. Strangers can reach it,
// so every client is bounded in time and bytes, the number of clients is bounded, and none of them can
// disturb another. It does not interpret blobs.
#pragma once

#include <towline/plugin/v1.h>

#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/os/socket_address.h"
#include "base/os/socket_user.h"
#include "base/os/source_key.h"
#include "base/os/stream.h"
#include "secure/keys.h"

namespace towline::metadata {

using Blob = std::vector<uint8_t>;

// The owner of a Listener, which outlives it.
class ListenerHost {
 public:
  virtual ~ListenerHost() = default;

  // Level-triggered epoll, as in towline_host_v1_t. Throw Error.
  virtual void watch(int fd, uint32_t epoll_events, towline_ready_fn ready, void* argument) = 0;
  virtual void rewatch(int fd, uint32_t epoll_events, towline_ready_fn ready, void* argument) = 0;
  virtual void unwatch(int fd) noexcept = 0;

  // The blob to answer with. Kept until the last client that gets it is done.
  virtual std::shared_ptr<const Blob> local_blob() = 0;
  // A client's blob, never empty, before it gets ours. Throws Error to refuse: the client gets the status and
  // the text.
  virtual void peer_blob(std::span<const uint8_t> blob) = 0;
  // A client was turned away, or cut, for the counters.
  virtual void refused(Status why) noexcept = 0;
};

struct ListenerOptions {
  std::string listen;         // endpoints, comma-separated; see base/socket_address.h
  std::string advertise;      // "host[:port]" given out instead of what the sockets say; empty: found out
  PortRange ports;            // for endpoints with port 0
  secure::MaybeKeys keys;     // of every connection
  bool any_user = false;      // serves processes of other users of this host
  uint32_t max_clients = 64;  // half of them of one source
  uint64_t max_blob_bytes = 64u << 20;    // of one client
  uint64_t max_total_bytes = 256u << 20;  // received from all clients and not yet dealt with
  uint64_t client_timeout_ns = 10 * kSecondNs;
};

class Listener {
 public:
  // Throws Error: kAddressInUse and so on, naming the address.
  Listener(ListenerHost& host, const Clock& clock, const ListenerOptions& options);
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  // The addresses to reach it at, best first ("10.0.0.7:7777"), by the interfaces that are up now. Any thread. Throws
  // Error.
  [[nodiscard]] std::vector<std::string> addresses() const;

  // When expire() has something to do; kNoDeadline when no client is there.
  [[nodiscard]] uint64_t next_deadline_ns() const noexcept;
  // Cuts the clients that took too long; returns how many.
  uint32_t expire(uint64_t now_ns);

  [[nodiscard]] std::size_t clients() const noexcept { return clients_.size(); }
  [[nodiscard]] uint64_t served() const noexcept { return served_; }
  [[nodiscard]] uint64_t refused() const noexcept {
    return refused_;
  }  // garbage, too slow, too many, too large

 private:
  struct Door;
  struct Client;
  using Clients = std::list<Client>;

  void accept_from(ListeningSocket& socket);
  void admit(Stream stream, const SocketAddress& from);
  void make_room(const SocketAddress& from);
  void note_refusal(Status why) noexcept;
  void serve(Client& client, uint32_t events);
  bool receive(Client& client);
  void ask_again(Client& client);
  bool answer(Client& client);
  bool send(Client& client);
  void drop(Client& client, Status why) noexcept;  // kOk: it was served

  ListenerHost& host_;
  const Clock& clock_;
  const ListenerOptions options_;
  SocketUsers users_;
  std::vector<std::unique_ptr<Door>> doors_;
  Clients clients_;  // oldest first: they share one timeout, so the first is the first to expire
  uint64_t held_bytes_ = 0;
  uint64_t served_ = 0;
  uint64_t refused_ = 0;
};

}  // namespace towline::metadata
