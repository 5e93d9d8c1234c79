// A carrier's lines and peers: carrier_lines.cc has what happens to a line, carrier.cc the peers and the calls.
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
  struct Line {
    explicit Line(Stream stream) noexcept : frames(std::move(stream)) {}

    FramedStream frames;
    bool connecting = false;
    bool said_hello = false;  // the other side has shown our ticket
    bool initiated = false;
    bool over = false;  // waits to be swept
    bool wants_write = false;
    bool dropped = false;                // a message, as too much was unsent
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
    Line* line = nullptr;  // the one that messages go over
    bool wanted = false;   // by the application; it disconnects those that it wants no more
  };

  State(Engine& to, CarrierOptions given)
      : engine(to),
        options(std::move(given)),
        ticket(Id::random()),
        listener(parse_endpoint(options.listen, 0)) {
    poller.add(listener.fd(), EPOLLIN, nullptr);
  }

  CarrierAddress address() const;
  Line& add_line(std::list<Line>& to, Stream stream, uint32_t watched);
  void start(Known& peer, std::size_t endpoint);
  void start_or_lose(Known& peer, std::size_t endpoint) noexcept;
  void say_hello(Line& line, const Id& their_ticket);
  Known& add_peer(const CarrierAddress& address);
  Known* find(Handle handle) noexcept;
  void forget(Handle handle) noexcept;
  void lose(Handle handle, std::string_view why) noexcept;

  void accept() noexcept;
  void handle(Line& line, uint32_t what) noexcept;
  void write(Line& line) noexcept;
  void read(Line& line) noexcept;
  void take_frames(Line& line) noexcept;
  void read_on() noexcept;
  void take_hello(Line& line, std::span<const uint8_t> frame);
  void end(Line& line, const char* why, int error = 0) noexcept;
  void end_late() noexcept;
  void sweep() noexcept;
  void go_on(Line& line) noexcept;

  Engine& engine;
  const CarrierOptions options;
  const Id ticket;
  ListeningSocket listener;
  Poller poller;
  // Every line is in one of them; pointers to it stay valid until it is swept.
  std::list<Line> strangers;  // oldest first
  std::list<Line> lines;      // of peers
  std::list<Line> swept;
  Line* being_read = nullptr;  // what is said over it goes out when all has been read
  std::map<Id, Known> peers;
  std::unordered_map<uint64_t, Id> by_handle;
  bool some_over = false;
  bool some_unread = false;  // lines had more than a turn takes
  uint64_t now_ns = monotonic_now_ns();
  std::size_t awaited = 0;     // lines that have yet to say hello
  uint64_t next_check_ns = 0;  // for those that did not in time; while some are awaited
  std::size_t events = 0;
};

}  // namespace towline::fabric
