// Events of a carrier's lines: hellos, bytes, ends.
#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/error.h"
#include "base/wire.h"
#include "fabric/carrier_state.h"

namespace towline::fabric {
namespace {

constexpr uint32_t kHelloMagic = 0x31'48'46'54;  // "TFH1"
constexpr std::size_t kMaxHelloBytes = kMaxCarrierBytes + 64;
constexpr const char* kOtherKeys = "the other side has other keys (secure.*), or none";
constexpr uint64_t kCheckNs = 100 * kMillisecondNs;

// Takes as long for every wrong ticket.
bool same(const Id& a, const Id& b) noexcept { return ((a.hi ^ b.hi) | (a.lo ^ b.lo)) == 0; }

}  // namespace

auto Carrier::State::add_line(std::list<Line>& to, Stream stream, uint32_t watched) -> Line& {
  stream.tune({});
  Line& line = to.emplace_back(std::move(stream));
  line.deadline_ns = now_ns + options.hello_ns;
  try {
    poller.add(line.frames.stream().fd(), watched, &line);
  } catch (...) {
    to.pop_back();
    throw;
  }
  next_check_ns = awaited++ == 0 ? line.deadline_ns : std::min(next_check_ns, line.deadline_ns);
  return line;
}

void Carrier::State::start(Known& peer, std::size_t endpoint) {
  const auto to = numeric_address(peer.address.endpoints.at(endpoint));
  if (!to)
    fail(Status::kInvalidArgument, "{} is no numeric address", peer.address.endpoints[endpoint].text());
  if (strangers.size() + lines.size() >= options.max_lines)
    fail(Status::kLimitExceeded, "{} lines are open", strangers.size() + lines.size());
  Stream stream = Stream::open(to->family());
  const int error = stream.start_connect(*to);
  if (error != 0 && error != EINPROGRESS) fail_errno(error, "connecting to {}", to->text());
  secure::secure(options.keys, stream, secure::Side::kCaller);
  Line& line = add_line(lines, std::move(stream), EPOLLIN | EPOLLOUT);
  line.initiated = line.wants_write = true;
  line.connecting = error == EINPROGRESS;
  line.peer = peer.handle;
  line.endpoint = endpoint;
  peer.line = &line;
  try {
    say_hello(line, peer.address.ticket);
  } catch (...) {
    peer.line = nullptr;
    end(line, kNoMemoryForMessages);
    throw;
  }
}

// What was said to the peer went to a line that has ended.
void Carrier::State::start_or_lose(Known& peer, std::size_t endpoint) noexcept {
  const Handle handle = peer.handle;
  try {
    start(peer, endpoint);
  } catch (const core::Error& error) {
    return lose(handle, error.message());
  } catch (const std::exception&) {
    return lose(handle, kNoMemoryForMessages);
  }
  engine.say_again(handle);
}

void Carrier::State::say_hello(Line& line, const Id& their_ticket) {
  std::vector<uint8_t> hello;
  WireWriter out{hello};
  out.u32(kHelloMagic);
  out.u8(kControlVersion);
  out.u64(their_ticket.hi);
  out.u64(their_ticket.lo);
  out.bytes16(encode(address()));
  if (!line.frames.append(hello)) throw std::bad_alloc();
}

void Carrier::State::write(Line& line) noexcept {
  if (line.over || line.connecting) return;
  const StreamResult shaken = line.frames.stream().shake_hands();
  if (shaken.over()) return end(line, shaken.refused() ? kOtherKeys : "it can't be written to", shaken.error);
  const StreamResult sent = shaken.moved() ? line.frames.flush() : shaken;
  if (sent.over()) return end(line, "it can't be written to", sent.error);
  // The end of the handshake may have come with what the peer said next.
  some_unread = some_unread || line.frames.stream().unread();
  // A handshake that has been sent so far goes on when something comes.
  const bool wanted = shaken.moved() ? line.frames.unsent() != 0 : line.frames.stream().unsent();
  if (wanted == line.wants_write) return;
  try {
    poller.modify(line.frames.stream().fd(), EPOLLIN | (wanted ? uint32_t{EPOLLOUT} : 0u), &line);
    line.wants_write = wanted;
  } catch (const std::exception&) {
    end(line, "it can't be watched");
  }
}

void Carrier::State::read(Line& line) noexcept {
  being_read = &line;
  take_frames(line);
  being_read = nullptr;
  write(line);
}

void Carrier::State::take_frames(Line& line) noexcept {
  constexpr int kMostReads = 16;  // a turn
  for (int i = 0; i < kMostReads && !line.over; ++i) {
    const StreamResult got = line.frames.fill();
    if (got.kind == StreamResult::Kind::kEnded) return end(line, "the peer closed its connection");
    if (got.over()) return end(line, got.refused() ? kOtherKeys : "it can't be read", got.error);
    if (got.blocked()) return;
    std::span<const uint8_t> frame;
    while (!line.over) {
      const auto next = line.frames.next(line.said_hello ? kMaxControlBytes : kMaxHelloBytes, frame);
      if (next == FramedStream::Next::kNone) break;
      if (next == FramedStream::Next::kTooLong) return end(line, "a frame is too long");
      ++events;
      if (line.said_hello) {
        engine.on_control(line.peer, frame);
        continue;
      }
      try {
        take_hello(line, frame);
      } catch (const std::exception&) {
        end(line, "it can't be answered");
      }
    }
    if (got.bytes < FramedStream::kMostRead && !line.frames.stream().unread()) return;
  }
  some_unread = some_unread || (!line.over && line.frames.stream().unread());
}

// Of what lies in a session no poll() tells.
void Carrier::State::read_on() noexcept {
  if (!std::exchange(some_unread, false)) return;
  for (std::list<Line>* list : {&strangers, &lines}) {
    for (auto at = list->begin(); at != list->end();) {
      Line& line = *at++;  // a stranger may become a peer
      if (!line.over && line.frames.stream().unread()) read(line);
    }
  }
}

// Throws where it can't be answered.
void Carrier::State::take_hello(Line& line, std::span<const uint8_t> frame) {
  WireReader in{frame};
  const bool known = in.u32() == kHelloMagic && in.u8() == kControlVersion;
  Id shown;
  shown.hi = in.u64();
  shown.lo = in.u64();
  const auto theirs = decode_carrier_address(in.bytes16());
  if (!known || !in.finished() || !same(shown, ticket) || !theirs)
    return end(line, "it does not know the ticket");
  const auto found = peers.find(theirs->engine.engine);
  if (line.initiated) {
    if (found == peers.end() || found->second.handle != line.peer)
      return end(line, "another engine answers at its address");
  } else {
    say_hello(line, theirs->ticket);
    Known& peer = found != peers.end() ? found->second : add_peer(*theirs);
    line.peer = peer.handle;
    peer.line = &line;
    const auto at = std::find_if(strangers.begin(), strangers.end(),
                                 [&](const Line& stranger) { return &stranger == &line; });
    lines.splice(lines.end(), strangers, at);
  }
  if (!line.over) --awaited;
  line.said_hello = true;
  line.deadline_ns = kNoDeadline;
}

void Carrier::State::accept() noexcept {
  constexpr int kMaxPerTurn = 16;
  for (int i = 0; i < kMaxPerTurn; ++i) {
    SocketAddress from;
    int error = 0;
    UniqueFd fd = listener.accept(&from, &error);
    if (!fd) return;
    ++events;
    if (strangers.size() + lines.size() >= options.max_lines) continue;  // closes it
    const SourceKey source = source_of(from);
    if (Line* oldest =
            gives_way(strangers, source, options.max_strangers, [](const Line& l) { return l.source; })) {
      end(*oldest, "another one needs its place");
      sweep();
    }
    try {
      Stream stream = Stream::accepted(std::move(fd));
      secure::secure(options.keys, stream, secure::Side::kCalled);
      add_line(strangers, std::move(stream), EPOLLIN).source = source;
    } catch (const std::exception&) {  // closes it
    }
  }
}

void Carrier::State::handle(Line& line, uint32_t what) noexcept {
  if (line.over) return;
  ++events;
  if (line.connecting && (what & (EPOLLOUT | EPOLLERR | EPOLLHUP)) != 0) {
    if (const int error = line.frames.stream().finish_connect(); error != 0)
      return end(line, "it can't be reached", error);
    line.connecting = false;
  }
  if ((what & EPOLLOUT) != 0) {
    write(line);
    if (line.dropped && !line.over && line.frames.unsent() == 0) {
      line.dropped = false;
      engine.say_again(line.peer);
    }
  }
  if ((what & (EPOLLIN | EPOLLERR | EPOLLHUP)) != 0) read(line);
}

// ---- Ends

// It is swept in this turn or the next: the caller may still use it.
void Carrier::State::end(Line& line, const char* why, int error) noexcept {
  if (line.over) return;
  line.over = some_over = true;
  if (!line.said_hello) --awaited;
  line.why = why;
  line.error = error;
  poller.remove(line.frames.stream().fd());
  line.frames.stream().close();
}

// Looks at all lines, which may be many, so at most once in kCheckNs and only where the time of one is up.
void Carrier::State::end_late() noexcept {
  if (awaited == 0 || now_ns < next_check_ns) return;
  uint64_t earliest_ns = kNoDeadline;
  for (std::list<Line>* list : {&strangers, &lines}) {
    for (Line& line : *list) {
      if (line.over) continue;
      if (line.deadline_ns <= now_ns)
        end(line, "it did not say hello in time");
      else
        earliest_ns = std::min(earliest_ns, line.deadline_ns);
    }
  }
  next_check_ns = std::max(earliest_ns, now_ns + kCheckNs);
}

void Carrier::State::sweep() noexcept {
  while (some_over) {
    some_over = false;
    std::erase_if(strangers, [](const Line& line) { return line.over; });
    for (auto at = lines.begin(); at != lines.end();) {
      const auto line = at++;
      if (line->over) swept.splice(swept.end(), lines, line);
    }
    for (; !swept.empty(); swept.pop_front()) go_on(swept.front());
  }
}

// A peer whose line has ended is asked once more. If it does not answer, it is lost.
void Carrier::State::go_on(Line& line) noexcept {
  Known* peer = line.peer.is_none() ? nullptr : find(line.peer);
  if (peer == nullptr) return;
  if (peer->line != &line) return engine.say_again(line.peer);  // what it still had is lost
  peer->line = nullptr;
  const std::size_t next = line.said_hello ? 0 : line.endpoint + 1;
  if (next < peer->address.endpoints.size() && (line.said_hello || line.initiated))
    return start_or_lose(*peer, next);
  std::string why;
  try {
    why = line.error == 0 ? line.why : fmt::format("{}: {}", line.why, errno_text(line.error));
  } catch (const std::exception&) {
    why.clear();
  }
  lose(line.peer, why.empty() ? std::string_view(kNoMemoryForMessages) : why);
}

}  // namespace towline::fabric
