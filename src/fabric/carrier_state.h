// A carrier's links and peers: carrier_links.cc has what happens to a link, carrier.cc the peers and the calls.
#pragma once

#include <list>
#include <map>
#include <span>
#include <unordered_map>

#include "base/os/poller.h"
#include "base/os/source_key.h"
#include "fabric/carrier.h"
#include "fabric/framed_stream.h"

namespace towline::fabric {

inline constexpr const char* kNoMemoryForMessages = "there is no memory for its messages";

struct Carrier::State {
  struct Link {
    explicit Link(Stream stream) noexcept : frames(std::move(stream)) {}

    FramedStream frames;
    bool connecting = false;
    bool said_hello = false;  // the other side has shown our ticket
    bool initiated = false;
    bool over = false;  // waits to be swept
    bool wants_write = false;
    const char* why = "";                // it is over
    int error = 0;                       // an errno that says more
    uint64_t deadline_ns = kNoDeadline;  // to connect and say hello
    Handle peer;                         // none: a stranger
    std::size_t endpoint = 0;            // of the peer's, being tried
    SourceKey source = {};               // of a stranger
  };

  struct Known {
    Handle handle;
    CarrierAddress address;
    Link* link = nullptr;  // the one that messages go over
  };

  State(Engine& to, CarrierOptions given)
      : engine(to),
        options(std::move(given)),
        ticket(Id::random()),
        listener(parse_endpoint(options.listen, 0)) {
    poller.add(listener.fd(), EPOLLIN, nullptr);
  }

  CarrierAddress address() const;
  Link& add_link(std::list<Link>& to, Stream stream);
  void start(Known& peer, std::size_t endpoint);
  void say_hello(Link& link, const Id& their_ticket);
  Known& add_peer(const CarrierAddress& address);
  Known* find(Handle handle) noexcept;
  void forget(Handle handle) noexcept;

  void accept() noexcept;
  void handle(Link& link, uint32_t what) noexcept;
  void write(Link& link) noexcept;
  void read(Link& link) noexcept;
  void take_hello(Link& link, std::span<const uint8_t> frame);
  void end(Link& link, const char* why, int error = 0) noexcept;
  void end_late() noexcept;
  void sweep() noexcept;
  void go_on(Link& link) noexcept;

  Engine& engine;
  const CarrierOptions options;
  const Id ticket;
  ListeningSocket listener;
  Poller poller;
  // Every link is in one of them; pointers to it stay valid until it is swept.
  std::list<Link> strangers;  // oldest first
  std::list<Link> links;      // of peers
  std::list<Link> swept;
  std::map<Id, Known> peers;
  std::unordered_map<uint64_t, Id> by_handle;
  bool some_over = false;
  uint64_t now_ns = monotonic_now_ns();
  uint64_t next_check_ns = 0;
  std::size_t events = 0;
};

}  // namespace towline::fabric
