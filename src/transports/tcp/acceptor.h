// The acceptor's side of handshakes: listens, reads hellos, and cuts connections that send none in time. Those of
// other users of this host are cut unread. Lives on worker 0.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "base/os/socket_address.h"
#include "base/os/socket_user.h"
#include "base/os/stream.h"
#include "towline/plugin/backend.hpp"
#include "transports/tcp/options.h"
#include "transports/tcp/packet_reader.h"
#include "transports/tcp/sources.h"
#include "transports/tcp/wire.h"

namespace towline::tcp {

// A connection whose hello is in order and addressed to us.
struct Arrival {
  Stream stream;
  Hello hello;
  Sources::Slot slot;
};

class Acceptor {
 public:
  // Binds and watches. `arrived` is called on worker 0. Throws Error, naming the address.
  Acceptor(const plugin::Host& host, const Options& options, Sources& sources,
           std::function<void(Arrival)> arrived);
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;
  ~Acceptor();

  // Endpoints for peers, numbers only, best first: those of the interfaces that are up now. Any thread.
  // Throws Error.
  [[nodiscard]] std::vector<std::string> endpoints() const;
  [[nodiscard]] std::size_t pending() const noexcept { return pending_.size(); }
  [[nodiscard]] uint64_t cut() const noexcept { return cut_; }

  [[nodiscard]] uint64_t next_ns() const noexcept;
  // Cuts those whose time is over; returns how many.
  uint32_t expire(uint64_t now_ns) noexcept;

 private:
  struct Door {
    Acceptor* owner;
    ListeningSocket socket;
  };
  struct Pending {
    Acceptor* owner = nullptr;
    Stream stream;
    SocketAddress from;
    uint64_t deadline_ns = 0;
    bool watched = false;
    bool watched_to_write = false;
    PacketReader reader{kHelloMagic};
    std::list<Pending>::iterator self;
  };

  static void door_ready(void* door, uint32_t events);
  static void pending_ready(void* pending, uint32_t events);
  void listen(const Endpoint& endpoint);
  void look_up_advertised();
  void admit(Stream stream, const SocketAddress& from);
  void make_room(const SocketAddress& from);
  void hear(Pending& pending) noexcept;
  void wait_for_more(Pending& pending);
  void read_hello(Pending& pending);
  void take_hello(Pending& pending);
  void refuse(Pending& pending, Status status, const char* text);
  // Ends it without an answer.
  void cut(Pending& pending, Status status, const char* why) noexcept;
  void drop(Pending& pending) noexcept;
  void note(Status status, const char* text) noexcept;

  const plugin::Host& host_;
  const Options& options_;
  Sources& sources_;
  const std::function<void(Arrival)> arrived_;
  std::list<Door> doors_;
  std::vector<Endpoint> advertised_;
  std::list<Pending> pending_;  // oldest first
  uint64_t cut_ = 0;
  SocketUsers users_;
  detail::LogRateLimit log_limit_{10 * kSecondNs};
};

// Sends a whole reply on a new connection; false when it does not take it.
bool send_reply(const plugin::Host& host, Stream& stream, Status status, const std::string& text);

Id incarnation_of(const towline_identity& identity) noexcept;

}  // namespace towline::tcp
