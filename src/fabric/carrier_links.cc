// Events of a carrier's links: hellos, bytes, ends.
#include <algorithm>

#include "base/error.h"
#include "base/wire.h"
#include "fabric/carrier_state.h"

namespace towline::fabric {
namespace {

constexpr uint32_t kHelloMagic = 0x31'48'46'54;  // "TFH1"
constexpr std::size_t kMaxHelloBytes = kMaxCarrierBytes + 64;
constexpr uint64_t kCheckNs = 100 * kMillisecondNs;

// Takes as long for every wrong ticket.
bool same(const Id& a, const Id& b) noexcept { return ((a.hi ^ b.hi) | (a.lo ^ b.lo)) == 0; }

}  // namespace

auto Carrier::State::add_link(std::list<Link>& to, Stream stream) -> Link& {
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

void Carrier::State::start(Known& peer, std::size_t endpoint) {
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
    end(link, kNoMemoryForMessages);
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
    Known& peer = found != peers.end() ? found->second : add_peer(*theirs);
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

// A peer whose link has ended is asked once more. If it does not answer, it is lost.
void Carrier::State::go_on(Link& link) noexcept {
  Known* peer = link.peer.is_none() ? nullptr : find(link.peer);
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
    return lose(kNoMemoryForMessages);
  }
  lose(why);
}

}  // namespace towline::fabric
