#include "fabric/carrier.h"

#include <algorithm>
#include <list>
#include <unordered_map>

#include "base/error.h"
#include "base/os/poller.h"
#include "base/os/source_key.h"
#include "base/wire.h"
#include "fabric/framed_stream.h"

namespace towline::fabric {
namespace {

constexpr uint32_t kHelloMagic = 0x31'48'46'54;  // "TFH1"
constexpr std::size_t kMaxHelloBytes = kMaxCarrierBytes + 64;
constexpr uint64_t kCheckNs = 100 * kMillisecondNs;
constexpr const char* kNoMemory = "there is no memory for its messages";

// Takes as long for every wrong ticket.
bool same(const Id& a, const Id& b) noexcept { return ((a.hi ^ b.hi) | (a.lo ^ b.lo)) == 0; }

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

struct KnownPeer {
  Handle handle;
  CarrierAddress address;
  Link* link = nullptr;  // the one that messages go over
};

}  // namespace

struct Carrier::State {
  State(Engine& to, CarrierOptions given)
      : engine(to),
        options(std::move(given)),
        ticket(Id::random()),
        listener(parse_endpoint(options.listen, 0)) {
    poller.add(listener.fd(), EPOLLIN, nullptr);
  }

  CarrierAddress address() const;
  Link& add_link(std::list<Link>& to, Stream stream);
  void start(KnownPeer& peer, std::size_t endpoint);
  void say_hello(Link& link, const Id& their_ticket);
  KnownPeer& add_peer(const CarrierAddress& address);
  KnownPeer* find(Handle handle) noexcept;
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
  std::map<Id, KnownPeer> peers;
  std::unordered_map<uint64_t, Id> by_handle;
  bool some_over = false;
  uint64_t now_ns = monotonic_now_ns();
  uint64_t next_check_ns = 0;
  std::size_t events = 0;
};

CarrierAddress Carrier::State::address() const {
  CarrierAddress made;
  made.ticket = ticket;
  for (const SocketAddress& reachable : listener.reachable())
    if (made.endpoints.size() < kMaxCarrierEndpoints) made.endpoints.push_back(reachable.endpoint());
  made.engine = engine.address();
  return made;
}

// ---- Links

Link& Carrier::State::add_link(std::list<Link>& to, Stream stream) {
  stream.tune({});
  Link& link = to.emplace_back(std::move(stream));
  link.deadline_ns = now_ns + options.hello_ns;
  try {
    poller.add(link.frames.stream().fd(), EPOLLIN, &link);
  } catch (...) {
    to.pop_back();
    throw;
  }
  return link;
}

void Carrier::State::start(KnownPeer& peer, std::size_t endpoint) {
  const auto to = numeric_address(peer.address.endpoints.at(endpoint));
  if (!to)
    fail(Status::kInvalidArgument, "{} is no numeric address", peer.address.endpoints[endpoint].text());
  if (strangers.size() + links.size() >= options.max_links)
    fail(Status::kLimitExceeded, "{} links are open", strangers.size() + links.size());
  Stream stream = Stream::open(to->family());
  const int error = stream.start_connect(*to);
  if (error != 0 && error != EINPROGRESS) fail_errno(error, "connecting to {}", to->text());
  Link& link = add_link(links, std::move(stream));
  link.initiated = true;
  link.connecting = error == EINPROGRESS;
  link.peer = peer.handle;
  link.endpoint = endpoint;
  peer.link = &link;
  try {
    say_hello(link, peer.address.ticket);
    link.wants_write = true;
    poller.modify(link.frames.stream().fd(), EPOLLIN | EPOLLOUT, &link);
  } catch (...) {
    peer.link = nullptr;
    end(link, kNoMemory);
    throw;
  }
}

void Carrier::State::say_hello(Link& link, const Id& their_ticket) {
  std::vector<uint8_t> hello;
  WireWriter out{hello};
  out.u32(kHelloMagic);
  out.u8(kControlVersion);
  out.u64(their_ticket.hi);
  out.u64(their_ticket.lo);
  out.bytes16(encode(address()));
  if (!link.frames.append(hello)) throw std::bad_alloc();
}

void Carrier::State::write(Link& link) noexcept {
  if (link.over || link.connecting) return;
  const StreamResult sent = link.frames.flush();
  if (sent.over()) return end(link, "it can't be written to", sent.error);
  const bool wanted = link.frames.unsent() != 0;
  if (wanted == link.wants_write) return;
  try {
    poller.modify(link.frames.stream().fd(), EPOLLIN | (wanted ? uint32_t{EPOLLOUT} : 0u), &link);
    link.wants_write = wanted;
  } catch (const std::exception&) {
    end(link, "it can't be watched");
  }
}

void Carrier::State::read(Link& link) noexcept {
  constexpr int kMostReads = 16;  // a turn
  for (int i = 0; i < kMostReads && !link.over; ++i) {
    const StreamResult got = link.frames.fill();
    if (got.kind == StreamResult::Kind::kEnded) return end(link, "the peer closed its connection");
    if (got.over()) return end(link, "it can't be read", got.error);
    if (got.blocked()) return;
    std::span<const uint8_t> frame;
    while (!link.over) {
      const auto next = link.frames.next(link.said_hello ? kMaxControlBytes : kMaxHelloBytes, frame);
      if (next == FramedStream::Next::kNone) break;
      if (next == FramedStream::Next::kTooLong) return end(link, "a frame is too long");
      ++events;
      if (link.said_hello) {
        engine.on_control(link.peer, frame);
        continue;
      }
      try {
        take_hello(link, frame);
      } catch (const std::exception&) {
        end(link, "it can't be answered");
      }
    }
  }
}

// Throws where it can't be answered.
void Carrier::State::take_hello(Link& link, std::span<const uint8_t> frame) {
  WireReader in{frame};
  const bool known = in.u32() == kHelloMagic && in.u8() == kControlVersion;
  Id shown;
  shown.hi = in.u64();
  shown.lo = in.u64();
  const auto theirs = decode_carrier_address(in.bytes16());
  if (!known || !in.finished() || !same(shown, ticket) || !theirs)
    return end(link, "it does not know the ticket");
  const auto found = peers.find(theirs->engine.engine);
  if (link.initiated) {
    if (found == peers.end() || found->second.handle != link.peer)
      return end(link, "another engine answers at its address");
  } else {
    say_hello(link, theirs->ticket);
    KnownPeer& peer = found != peers.end() ? found->second : add_peer(*theirs);
    link.peer = peer.handle;
    peer.link = &link;
    const auto at = std::find_if(strangers.begin(), strangers.end(),
                                 [&](const Link& stranger) { return &stranger == &link; });
    links.splice(links.end(), strangers, at);
    write(link);
  }
  link.said_hello = true;
  link.deadline_ns = kNoDeadline;
}

void Carrier::State::accept() noexcept {
  constexpr int kMaxPerTurn = 16;
  for (int i = 0; i < kMaxPerTurn; ++i) {
    SocketAddress from;
    int error = 0;
    UniqueFd fd = listener.accept(&from, &error);
    if (!fd) return;
    ++events;
    if (strangers.size() + links.size() >= options.max_links) continue;  // closes it
    const SourceKey source = source_of(from);
    if (Link* oldest =
            gives_way(strangers, source, options.max_strangers, [](const Link& l) { return l.source; })) {
      end(*oldest, "another one needs its place");
      sweep();
    }
    try {
      add_link(strangers, Stream::accepted(std::move(fd))).source = source;
    } catch (const std::exception&) {  // closes it
    }
  }
}

void Carrier::State::handle(Link& link, uint32_t what) noexcept {
  if (link.over) return;
  ++events;
  if (link.connecting && (what & (EPOLLOUT | EPOLLERR | EPOLLHUP)) != 0) {
    if (const int error = link.frames.stream().finish_connect(); error != 0)
      return end(link, "it can't be reached", error);
    link.connecting = false;
  }
  if ((what & EPOLLOUT) != 0) write(link);
  if ((what & (EPOLLIN | EPOLLERR | EPOLLHUP)) != 0) read(link);
}

// ---- Ends

// It is swept in this turn or the next: the caller may still use it.
void Carrier::State::end(Link& link, const char* why, int error) noexcept {
  if (link.over) return;
  link.over = some_over = true;
  link.why = why;
  link.error = error;
  poller.remove(link.frames.stream().fd());
  link.frames.stream().close();
}

void Carrier::State::end_late() noexcept {
  if (now_ns < next_check_ns) return;
  next_check_ns = now_ns + kCheckNs;
  for (std::list<Link>* list : {&strangers, &links})
    for (Link& link : *list)
      if (link.deadline_ns <= now_ns) end(link, "it did not say hello in time");
}

void Carrier::State::sweep() noexcept {
  while (some_over) {
    some_over = false;
    std::erase_if(strangers, [](const Link& link) { return link.over; });
    for (auto at = links.begin(); at != links.end();) {
      const auto link = at++;
      if (link->over) swept.splice(swept.end(), links, link);
    }
    for (; !swept.empty(); swept.pop_front()) go_on(swept.front());
  }
}

// A peer whose link has ended is asked once more; if nobody answers it is lost.
void Carrier::State::go_on(Link& link) noexcept {
  KnownPeer* peer = link.peer.is_none() ? nullptr : find(link.peer);
  if (peer == nullptr || peer->link != &link) return;
  peer->link = nullptr;
  const std::size_t next = link.said_hello ? 0 : link.endpoint + 1;
  const Handle handle = peer->handle;
  const auto lose = [&](std::string_view why) {
    forget(handle);
    engine.peer_lost(handle, why);
  };
  std::string why;
  try {
    if (next < peer->address.endpoints.size() && (link.said_hello || link.initiated))
      return start(*peer, next);
    why = link.error == 0 ? link.why : fmt::format("{}: {}", link.why, errno_text(link.error));
  } catch (const core::Error& error) {
    return lose(error.message());
  } catch (const std::exception&) {
    return lose(kNoMemory);
  }
  lose(why);
}

// ---- Peers

KnownPeer& Carrier::State::add_peer(const CarrierAddress& address) {
  KnownPeer& peer = peers[address.engine.engine];
  try {
    peer.address = address;
    peer.handle = engine.add_peer(address.engine);
    by_handle[peer.handle.to_u64()] = address.engine.engine;
  } catch (...) {
    engine.remove_peer(peer.handle);
    peers.erase(address.engine.engine);
    throw;
  }
  return peer;
}

KnownPeer* Carrier::State::find(Handle handle) noexcept {
  const auto id = by_handle.find(handle.to_u64());
  return id == by_handle.end() ? nullptr : &peers.at(id->second);
}

void Carrier::State::forget(Handle handle) noexcept {
  const auto id = by_handle.find(handle.to_u64());
  if (id == by_handle.end()) return;
  peers.erase(id->second);
  by_handle.erase(id);
}

// ---- The carrier

Carrier::Carrier(Engine& engine, CarrierOptions options)
    : state_(std::make_unique<State>(engine, std::move(options))) {}
Carrier::~Carrier() = default;

CarrierAddress Carrier::address() const { return state_->address(); }

Handle Carrier::connect(const CarrierAddress& address) {
  State& s = *state_;
  if (address.endpoints.empty()) fail(Status::kInvalidArgument, "an address without an endpoint");
  if (address.engine.engine == s.engine.id())
    fail(Status::kInvalidArgument, "an engine can't connect to itself");
  if (const auto found = s.peers.find(address.engine.engine); found != s.peers.end())
    return found->second.handle;
  KnownPeer& peer = s.add_peer(address);
  const Handle handle = peer.handle;
  try {
    s.start(peer, 0);
  } catch (...) {
    s.forget(handle);
    s.engine.remove_peer(handle);
    throw;
  }
  return handle;
}

void Carrier::disconnect(Handle handle) noexcept {
  State& s = *state_;
  s.engine.remove_peer(handle);
  const KnownPeer* peer = s.find(handle);
  if (peer == nullptr) return;
  Link* const link = peer->link;
  s.forget(handle);
  if (link == nullptr) return;
  s.write(*link);  // the engine's farewell
  s.end(*link, "");
}

void Carrier::send(Handle handle, std::span<const uint8_t> message) noexcept {
  State& s = *state_;
  const KnownPeer* peer = s.find(handle);
  if (peer == nullptr || peer->link == nullptr || message.size() > kMaxControlBytes) return;
  Link& link = *peer->link;
  if (link.over || link.frames.unsent() + message.size() > s.options.max_unsent_bytes) return;
  if (!link.frames.append(message)) return s.end(link, kNoMemory);
  s.write(link);
}

std::size_t Carrier::progress(uint64_t now_ns) noexcept {
  State& s = *state_;
  s.now_ns = now_ns;
  s.events = 0;
  PollEvent events[64];
  const std::size_t count = s.poller.wait(events, 0);
  for (std::size_t i = 0; i < count; ++i)
    if (events[i].context != nullptr) s.handle(*static_cast<Link*>(events[i].context), events[i].events);
  s.sweep();
  // Last: what it accepts may be given a place that one of these events names.
  for (std::size_t i = 0; i < count; ++i)
    if (events[i].context == nullptr) s.accept();
  s.end_late();
  s.sweep();
  return s.events;
}

int Carrier::event_fd() const noexcept { return state_->poller.fd(); }

uint64_t Carrier::next_timer_ns() const noexcept {
  const State& s = *state_;
  if (s.some_over) return s.now_ns;
  const auto waits = [](const Link& link) { return link.deadline_ns != kNoDeadline; };
  const bool any = !s.strangers.empty() || std::any_of(s.links.begin(), s.links.end(), waits);
  return any ? s.next_check_ns : kNoDeadline;
}

std::size_t Carrier::links() const noexcept {
  const auto open = [](const Link& link) { return !link.over; };
  return static_cast<std::size_t>(std::count_if(state_->strangers.begin(), state_->strangers.end(), open) +
                                  std::count_if(state_->links.begin(), state_->links.end(), open));
}

}  // namespace towline::fabric
