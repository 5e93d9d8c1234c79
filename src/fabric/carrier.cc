#include "fabric/carrier.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <unordered_map>

#include "base/error.h"
#include "base/wire.h"

namespace towline::fabric {
namespace {

constexpr uint32_t kCarrierMagic = 0x31'42'46'54;  // "TFB1"
constexpr uint32_t kHelloMagic = 0x31'48'46'54;    // "TFH1"
constexpr std::size_t kMaxEndpoints = 8;
constexpr std::size_t kMaxHostBytes = 255;
constexpr std::size_t kMaxCarrierBytes = kMaxAddressBytes + 4096;
constexpr std::size_t kMaxHelloBytes = kMaxCarrierBytes + 64;
constexpr uint64_t kListener = UINT64_MAX;

// Takes as long for every wrong ticket.
bool same(const Id& a, const Id& b) noexcept { return ((a.hi ^ b.hi) | (a.lo ^ b.lo)) == 0; }

struct Link {
  uint64_t number = 0;
  UniqueFd fd;
  bool connecting = false;
  bool said_hello = false;  // the other side has shown our ticket
  bool initiated = false;
  bool broken = false;
  bool wants_write = false;
  std::string why;
  uint64_t deadline_ns = kNoDeadline;  // to connect and say hello
  Handle peer;                         // none: a stranger
  std::size_t endpoint = 0;            // of the peer's, being tried
  std::vector<uint8_t> in;
  std::vector<uint8_t> out;
};

struct KnownPeer {
  Handle handle;
  CarrierAddress address;
  uint64_t link = 0;  // the one that messages go over; 0: none
};

}  // namespace

std::vector<uint8_t> encode(const CarrierAddress& address) {
  std::vector<uint8_t> bytes;
  WireWriter out{bytes, kMaxCarrierBytes};
  out.u32(kCarrierMagic);
  out.u8(kControlVersion);
  out.u64(address.ticket.hi);
  out.u64(address.ticket.lo);
  out.u8(static_cast<uint8_t>(address.endpoints.size()));
  for (const Endpoint& endpoint : address.endpoints) {
    out.string16(endpoint.host);
    out.u16(endpoint.port);
  }
  out.bytes16(encode(address.engine));
  return out.ok() ? bytes : std::vector<uint8_t>{};
}

std::optional<CarrierAddress> decode_carrier_address(std::span<const uint8_t> bytes) {
  if (bytes.size() > kMaxCarrierBytes) return std::nullopt;
  WireReader in{bytes};
  if (in.u32() != kCarrierMagic || in.u8() != kControlVersion) return std::nullopt;
  CarrierAddress address;
  address.ticket.hi = in.u64();
  address.ticket.lo = in.u64();
  const uint8_t endpoints = in.u8();
  if (endpoints == 0 || endpoints > kMaxEndpoints) return std::nullopt;
  for (uint8_t i = 0; i < endpoints; ++i) {
    Endpoint endpoint;
    endpoint.host = std::string{in.string16(kMaxHostBytes)};
    endpoint.port = in.u16();
    if (!in.ok() || endpoint.port == 0 || endpoint.host.find('\0') != std::string::npos) return std::nullopt;
    address.endpoints.push_back(std::move(endpoint));
  }
  const auto engine = decode_address(in.bytes16());
  if (!in.ok() || in.remaining() != 0 || !engine || address.ticket.is_none()) return std::nullopt;
  address.engine = *engine;
  return address;
}

struct Carrier::State {
  State(Engine& to, CarrierOptions given)
      : engine(to),
        options(std::move(given)),
        ticket(Id::random()),
        listener(parse_endpoint(options.listen, 0)) {
    poller = UniqueFd{epoll_create1(EPOLL_CLOEXEC)};
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = kListener;
    if (!poller || epoll_ctl(poller.get(), EPOLL_CTL_ADD, listener.fd(), &event) != 0)
      fail_errno(errno, "the carrier can't watch its port");
  }

  Link& add_link(UniqueFd fd) {
    const uint64_t number = ++last_link;
    Link& link = links[number];
    link.number = number;
    link.fd = std::move(fd);
    link.deadline_ns = now_ns + options.hello_ns;
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = number;
    if (epoll_ctl(poller.get(), EPOLL_CTL_ADD, link.fd.get(), &event) != 0)
      break_link(link, "it can't be watched: " + errno_text(errno));
    return link;
  }

  void watch_write(Link& link, bool wanted) noexcept {
    if (link.wants_write == wanted || link.broken) return;
    link.wants_write = wanted;
    epoll_event event{};
    event.events = EPOLLIN | (wanted ? static_cast<uint32_t>(EPOLLOUT) : 0u);
    event.data.u64 = link.number;
    epoll_ctl(poller.get(), EPOLL_CTL_MOD, link.fd.get(), &event);
  }

  // Ends it in the next turn: the caller may still use it.
  void break_link(Link& link, std::string why) noexcept {
    if (link.broken) return;
    link.broken = true;
    link.why = std::move(why);
    broken.push_back(link.number);
  }

  void start(KnownPeer& peer, std::size_t endpoint) {
    const auto address = numeric_address(peer.address.endpoints.at(endpoint));
    if (!address)
      fail(Status::kInvalidArgument, "{} is no numeric address", peer.address.endpoints[endpoint].text());
    if (links.size() >= options.max_links) fail(Status::kLimitExceeded, "{} links are open", links.size());
    UniqueFd fd = open_stream_socket(address->family());
    const int error = start_connect(fd.get(), *address);
    if (error != 0 && error != EINPROGRESS) fail_errno(error, "connecting to {}", address->text());
    Link& link = add_link(std::move(fd));
    link.initiated = true;
    link.connecting = error == EINPROGRESS;
    link.peer = peer.handle;
    link.endpoint = endpoint;
    peer.link = link.number;
    say_hello(link, peer.address.ticket);
    watch_write(link, true);
  }

  CarrierAddress address() const {
    CarrierAddress made;
    made.ticket = ticket;
    for (const SocketAddress& reachable : listener.reachable())
      if (made.endpoints.size() < kMaxEndpoints) made.endpoints.push_back(reachable.endpoint());
    made.engine = engine.address();
    return made;
  }

  void say_hello(Link& link, const Id& their_ticket) {
    std::vector<uint8_t> hello;
    WireWriter out{hello};
    out.u32(kHelloMagic);
    out.u8(kControlVersion);
    out.u64(their_ticket.hi);
    out.u64(their_ticket.lo);
    out.bytes16(encode(address()));
    append(link, hello);
  }

  void append(Link& link, std::span<const uint8_t> frame) {
    const auto length = static_cast<uint32_t>(frame.size());
    const auto* bytes = reinterpret_cast<const uint8_t*>(&length);
    link.out.insert(link.out.end(), bytes, bytes + sizeof length);
    link.out.insert(link.out.end(), frame.begin(), frame.end());
  }

  void write(Link& link) noexcept {
    if (link.broken || link.connecting) return;
    while (!link.out.empty()) {
      const ssize_t sent =
          ::send(link.fd.get(), link.out.data(), link.out.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent < 0 && errno == EINTR) continue;
      if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
      if (sent <= 0) return break_link(link, errno_text(errno));
      link.out.erase(link.out.begin(), link.out.begin() + sent);
    }
    watch_write(link, !link.out.empty());
  }

  void read(Link& link) noexcept {
    uint8_t buffer[16 << 10];
    while (!link.broken) {
      const ssize_t bytes = recv(link.fd.get(), buffer, sizeof buffer, MSG_DONTWAIT);
      if (bytes < 0 && errno == EINTR) continue;
      if (bytes < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
      if (bytes <= 0)
        return break_link(link, bytes == 0 ? "the peer closed its connection" : errno_text(errno));
      link.in.insert(link.in.end(), buffer, buffer + bytes);
      take_frames(link);
      if (static_cast<std::size_t>(bytes) < sizeof buffer) return;
    }
  }

  void take_frames(Link& link) noexcept {
    std::size_t at = 0;
    while (!link.broken && link.in.size() - at >= sizeof(uint32_t)) {
      uint32_t length = 0;
      std::memcpy(&length, link.in.data() + at, sizeof length);
      if (length > (link.said_hello ? kMaxControlBytes : kMaxHelloBytes))
        return break_link(link, "a frame is too long");
      if (link.in.size() - at - sizeof length < length) break;
      const std::span<const uint8_t> frame{link.in.data() + at + sizeof length, length};
      at += sizeof length + length;
      ++events;
      if (link.said_hello) {
        engine.on_control(link.peer, frame);
      } else {
        take_hello(link, frame);
      }
    }
    link.in.erase(link.in.begin(), link.in.begin() + static_cast<std::ptrdiff_t>(at));
  }

  void take_hello(Link& link, std::span<const uint8_t> frame) noexcept {
    WireReader in{frame};
    const bool known = in.u32() == kHelloMagic && in.u8() == kControlVersion;
    Id shown;
    shown.hi = in.u64();
    shown.lo = in.u64();
    const auto address = decode_carrier_address(in.bytes16());
    if (!known || !in.ok() || in.remaining() != 0 || !same(shown, ticket) || !address)
      return break_link(link, "it does not know the ticket");
    const auto found = peers.find(address->engine.engine);
    if (link.initiated) {
      if (found == peers.end() || found->second.handle != link.peer)
        return break_link(link, "another engine answers at its address");
    } else {
      try {
        KnownPeer& peer = found != peers.end() ? found->second : add_peer(*address);
        link.peer = peer.handle;
        peer.link = link.number;
        say_hello(link, address->ticket);
      } catch (const core::Error& error) {
        return break_link(link, error.message());
      }
      write(link);
    }
    link.said_hello = true;
    link.deadline_ns = kNoDeadline;
  }

  KnownPeer& add_peer(const CarrierAddress& address) {
    const Handle handle = engine.add_peer(address.engine);
    by_handle[handle.to_u64()] = address.engine.engine;
    return peers[address.engine.engine] = {handle, address, 0};
  }

  KnownPeer* find(Handle handle) noexcept {
    const auto id = by_handle.find(handle.to_u64());
    return id == by_handle.end() ? nullptr : &peers.at(id->second);
  }

  void accept(uint64_t now) noexcept {
    constexpr int kMaxPerTurn = 16;
    for (int i = 0; i < kMaxPerTurn; ++i) {
      SocketAddress from;
      int error = 0;
      UniqueFd fd = listener.accept(&from, &error);
      if (!fd) return;
      ++events;
      const auto strangers = static_cast<std::size_t>(std::count_if(
          links.begin(), links.end(), [](const auto& entry) { return entry.second.peer.is_none(); }));
      if (strangers >= options.max_strangers || links.size() >= options.max_links) continue;  // closes it
      now_ns = now;
      add_link(std::move(fd));
    }
  }

  void handle(uint64_t number, uint32_t what) noexcept {
    const auto found = links.find(number);
    if (found == links.end()) return;
    Link& link = found->second;
    ++events;
    if (link.connecting && (what & (EPOLLOUT | EPOLLERR | EPOLLHUP)) != 0) {
      if (const int error = finish_connect(link.fd.get()); error != 0)
        return break_link(link, errno_text(error));
      link.connecting = false;
    }
    if ((what & EPOLLOUT) != 0) write(link);
    if ((what & (EPOLLIN | EPOLLERR | EPOLLHUP)) != 0) read(link);
  }

  // A peer whose link has ended is asked once more; if nobody answers it is lost.
  void end_broken() noexcept {
    while (!broken.empty()) {
      const auto found = links.find(broken.back());
      broken.pop_back();
      if (found == links.end()) continue;
      const Link link = std::move(found->second);
      links.erase(found);
      KnownPeer* peer = link.peer.is_none() ? nullptr : find(link.peer);
      if (peer == nullptr || peer->link != link.number) continue;
      peer->link = 0;
      const std::size_t next = link.said_hello ? 0 : link.endpoint + 1;
      std::string why = link.why;
      try {
        if (next < peer->address.endpoints.size() && (link.said_hello || link.initiated)) {
          start(*peer, next);
          continue;
        }
      } catch (const core::Error& error) {
        why = error.message();
      }
      const Handle handle = peer->handle;
      forget(handle);
      engine.peer_lost(handle, why);
    }
  }

  void forget(Handle handle) noexcept {
    const auto id = by_handle.find(handle.to_u64());
    if (id == by_handle.end()) return;
    peers.erase(id->second);
    by_handle.erase(id);
  }

  Engine& engine;
  const CarrierOptions options;
  const Id ticket;
  ListeningSocket listener;
  UniqueFd poller;
  std::unordered_map<uint64_t, Link> links;
  std::map<Id, KnownPeer> peers;
  std::unordered_map<uint64_t, Id> by_handle;
  std::vector<uint64_t> broken;
  uint64_t last_link = 0;
  uint64_t now_ns = monotonic_now_ns();
  uint64_t next_check_ns = 0;
  std::size_t events = 0;
};

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
  if (KnownPeer* peer = s.find(handle)) {
    const auto link = s.links.find(peer->link);
    s.forget(handle);
    if (link == s.links.end()) return;
    s.write(link->second);  // the engine's farewell
    s.links.erase(link);
  }
}

void Carrier::send(Handle handle, std::span<const uint8_t> message) noexcept {
  State& s = *state_;
  KnownPeer* peer = s.find(handle);
  if (peer == nullptr || message.size() > kMaxControlBytes) return;
  const auto found = s.links.find(peer->link);
  if (found == s.links.end() || found->second.broken) return;
  Link& link = found->second;
  if (link.out.size() + message.size() > s.options.max_unsent_bytes) return;
  s.append(link, message);
  s.write(link);
}

std::size_t Carrier::progress(uint64_t now_ns) noexcept {
  State& s = *state_;
  s.now_ns = now_ns;
  s.events = 0;
  epoll_event events[64];
  const int count = epoll_wait(s.poller.get(), events, static_cast<int>(std::size(events)), 0);
  for (int i = 0; i < count; ++i) {
    if (events[i].data.u64 == kListener) {
      s.accept(now_ns);
    } else {
      s.handle(events[i].data.u64, events[i].events);
    }
  }
  if (now_ns >= s.next_check_ns) {
    s.next_check_ns = now_ns + 100 * kMillisecondNs;
    for (auto& [number, link] : s.links)
      if (link.deadline_ns <= now_ns) s.break_link(link, "it did not say hello in time");
  }
  s.end_broken();
  return s.events;
}

int Carrier::event_fd() const noexcept { return state_->poller.get(); }

uint64_t Carrier::next_timer_ns() const noexcept {
  const bool waiting = std::any_of(state_->links.begin(), state_->links.end(),
                                   [](const auto& entry) { return entry.second.deadline_ns != kNoDeadline; });
  return waiting ? state_->next_check_ns : kNoDeadline;
}

std::size_t Carrier::links() const noexcept { return state_->links.size(); }

}  // namespace towline::fabric
