#include "transports/tcp/acceptor.h"

#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>

#include "base/clock.h"
#include "base/error.h"
#include "base/short_text.h"
#include "transports/tcp/socket_lane.h"

namespace towline::tcp {
namespace {

constexpr std::size_t kMaxPending = 256;  // half of them of one source
constexpr uint32_t kAcceptsPerTurn = 4;   // what else the worker does must not wait for more,
constexpr uint64_t kMostAcceptingNs = 25 * kMicrosecondNs;  // or longer

}  // namespace

Id incarnation_of(const towline_identity& identity) noexcept {
  return {identity.incarnation[0], identity.incarnation[1]};
}

bool send_reply(const plugin::Host& host, Stream& stream, Status status, const std::string& text) {
  const towline_identity& self = host.self();
  Reply reply{static_cast<int32_t>(status), {}, {}, text};
  if (status == Status::kOk) {
    reply.incarnation = incarnation_of(self);
    reply.name = self.name == nullptr ? "" : self.name;
  }
  const std::vector<uint8_t> packet = pack(reply);
  return stream.write(packet.data(), packet.size()).bytes == packet.size();
}

Acceptor::Acceptor(const plugin::Host& host, const Options& options, Sources& sources,
                   std::function<void(Arrival)> arrived)
    : host_(host), options_(options), sources_(sources), arrived_(std::move(arrived)) {
  for (const Endpoint& endpoint : options.listen) listen(endpoint);
  if (!options.unix_dir.empty()) {
    const uint64_t* incarnation = host.self().incarnation;
    listen({true, fmt::format("{}/{:016x}.sock", options.unix_dir, incarnation[0] ^ incarnation[1]), 0});
  }
  look_up_advertised();
  std::vector<const ListeningSocket*> sockets;
  for (const Door& door : doors_) sockets.push_back(&door.socket);
  if (options.keys == nullptr) warn_of_open_ports("tcp", sockets);
  for (auto door = doors_.begin(); door != doors_.end(); ++door) {
    const int32_t status = host_.watch(0, door->socket.fd(), EPOLLIN, door_ready, &*door);
    if (status == TOWLINE_OK) continue;
    while (door != doors_.begin()) host_.unwatch(0, (--door)->socket.fd());
    fail(static_cast<Status>(status), "watching the listening socket");
  }
}

Acceptor::~Acceptor() {
  for (const Door& door : doors_) host_.unwatch(0, door.socket.fd());
  for (const Pending& pending : pending_)
    if (pending.watched) host_.unwatch(0, pending.stream.fd());
}

void Acceptor::listen(const Endpoint& endpoint) {
  doors_.push_back({this, ListeningSocket(endpoint, options_.ports)});
}

// Names that are advertised are looked up here and now, since connecting must not wait for a resolver.
void Acceptor::look_up_advertised() {
  if (options_.advertise.empty()) return;
  uint16_t port = 0;
  for (const Door& door : doors_)
    if (port == 0) port = door.socket.address().port();
  const Deadline deadline = Deadline::after(monotonic_now_ns(), 10 * kSecondNs);
  for (const Endpoint& endpoint : parse_endpoints(options_.advertise, port)) {
    for (const SocketAddress& address : resolve(endpoint, deadline)) {
      const Endpoint found = address.endpoint();
      if (std::find(advertised_.begin(), advertised_.end(), found) == advertised_.end())
        advertised_.push_back(found);
    }
  }
}

std::vector<std::string> Acceptor::endpoints() const {
  std::vector<const ListeningSocket*> sockets;  // what is advertised stands for all but Unix sockets
  for (const Door& door : doors_)
    if (options_.advertise.empty() || door.socket.address().is_unix()) sockets.push_back(&door.socket);
  std::vector<std::string> endpoints;
  for (const Endpoint& endpoint : advertised({}, sockets)) endpoints.push_back(endpoint.text());
  for (const Endpoint& endpoint : advertised_) endpoints.push_back(endpoint.text());
  return endpoints;
}

void Acceptor::door_ready(void* argument, uint32_t) {
  auto& door = *static_cast<Door*>(argument);
  Acceptor& acceptor = *door.owner;
  const uint64_t began_ns = monotonic_now_ns();
  for (uint32_t i = 0; i < kAcceptsPerTurn; ++i) {
    if (i != 0 && monotonic_now_ns() - began_ns > kMostAcceptingNs) return;
    int error = 0;
    SocketAddress from;
    Stream stream = Stream::accepted(door.socket.accept(&from, &error));
    if (error != 0)
      acceptor.note(status_from_errno(error),
                    ShortText("accepting a connection: {}", strerrordesc_np(error)));
    if (!stream.valid()) return;
    try {
      acceptor.admit(std::move(stream), from);
    } catch (const std::exception& failure) {
      acceptor.note(Status::kOutOfMemory, ShortText("taking a connection: {}", failure.what()));
    }
  }
}

void Acceptor::admit(Stream stream, const SocketAddress& from) {
  if (const UserRefusal why = options_.any_user ? UserRefusal() : users_.refusal(stream.fd());
      why.text != nullptr) {
    ++cut_;
    return note(why.status, ShortText("{} {}", from.text(), why.text));
  }
  secure::secure(options_.keys, stream, secure::Side::kCalled);
  make_room(from);
  Pending& pending = pending_.emplace_back();
  pending.owner = this;
  pending.stream = std::move(stream);
  pending.from = from;
  pending.deadline_ns = Deadline::after(host_.now_ns(), options_.handshake_timeout_ns).ns();
  pending.self = std::prev(pending_.end());
  hear(pending);  // it may be there already
}

// One source has half of the places at most. The connection that came first is the likeliest to be stuck: a hello
// is there within a round trip.
void Acceptor::make_room(const SocketAddress& from) {
  Pending* const oldest = gives_way(pending_, source_of(from), kMaxPending,
                                    [](const Pending& pending) { return source_of(pending.from); });
  if (oldest != nullptr)
    cut(*oldest, Status::kLimitExceeded, "gave way to others before its hello was there");
}

void Acceptor::pending_ready(void* argument, uint32_t) {
  auto& pending = *static_cast<Pending*>(argument);
  pending.owner->hear(pending);
}

// After an exception, `pending` is still in its list.
void Acceptor::hear(Pending& pending) noexcept {
  try {
    read_hello(pending);
  } catch (const std::exception& failure) {
    cut(pending, Status::kOutOfMemory, failure.what());
  }
}

void Acceptor::read_hello(Pending& pending) {
  switch (pending.reader.receive(pending.stream)) {
    case PacketReader::State::kMore:
      return wait_for_more(pending);
    case PacketReader::State::kWhole:
      return take_hello(pending);
    case PacketReader::State::kGarbage:
      return cut(pending, Status::kProtocol,
                 secure::looks_like_tls(pending.reader.packet())
                     ? "speaks TLS, and this side has no keys (secure.*)"
                     : "does not speak Towline's tcp");
    case PacketReader::State::kClosed:
      if (const char* const why = pending.stream.why(); why != nullptr)
        return cut(pending, Status::kPermissionDenied, ShortText("was refused: {}", why));
      return cut(pending, Status::kProtocol, "closed before its hello was there");
  }
}

void Acceptor::wait_for_more(Pending& pending) {
  const bool unsent = pending.stream.unsent();
  if (pending.watched && pending.watched_to_write == unsent) return;
  const uint32_t events = unsent ? EPOLLIN | EPOLLOUT : EPOLLIN;
  const int fd = pending.stream.fd();
  const int32_t status = pending.watched ? host_.rewatch(0, fd, events, pending_ready, &pending)
                                         : host_.watch(0, fd, events, pending_ready, &pending);
  if (status != TOWLINE_OK) return cut(pending, Status::kIo, "can't be watched");
  pending.watched = true;
  pending.watched_to_write = unsent;
}

void Acceptor::take_hello(Pending& pending) {
  Hello hello;
  const char* problem = unpack(pending.reader.packet(), hello);
  if (problem != nullptr) {
    const bool other_version = pending.reader.packet()[4] != kMajor;
    return refuse(pending, other_version ? Status::kUnsupported : Status::kProtocol, problem);
  }
  const towline_identity& self = host_.self();
  if (hello.target != incarnation_of(self)) {
    const bool same_name = self.name != nullptr && hello.target_name == self.name;
    return same_name
               ? refuse(pending, Status::kPeerRestarted, "the agent of that name is another incarnation")
               : refuse(pending, Status::kNotFound, "there is no such agent");
  }
  Sources::Slot slot = sources_.take(pending.from);
  if (!slot.taken()) {
    return refuse(
        pending, Status::kLimitExceeded,
        "too many connections: tuning.tcp.most_accepted and tuning.tcp.most_accepted_per_source limit them");
  }
  tune(pending.stream, options_);
  if (std::exchange(pending.watched, false)) host_.unwatch(0, pending.stream.fd());
  arrived_({std::move(pending.stream), std::move(hello), std::move(slot)});
  pending_.erase(pending.self);
}

void Acceptor::refuse(Pending& pending, Status status, const char* text) {
  if (sources_.note_refusal(pending.from, host_.now_ns())) send_reply(host_, pending.stream, status, text);
  cut(pending, status, ShortText("was refused: {}", text));
}

void Acceptor::cut(Pending& pending, Status status, const char* why) noexcept {
  ++cut_;
  try {
    note(status, ShortText("{} {}", pending.from.text(), why));
  } catch (const std::exception&) {  // no memory for the address
    note(status, why);
  }
  drop(pending);
}

void Acceptor::drop(Pending& pending) noexcept {
  if (pending.watched) host_.unwatch(0, pending.stream.fd());
  pending_.erase(pending.self);
}

// Counts all, and tells of some: a flood of strangers must not become one of messages.
void Acceptor::note(Status status, const char* text) noexcept {
  host_.refused(0, nullptr, status);
  uint64_t left_out = 0;
  if (!log_limit_.pass(host_.now_ns(), left_out)) return;
  if (left_out == 0) return host_.log(1, text);
  host_.log(1, ShortText("{} ({} more were turned away)", text, left_out));
}

uint64_t Acceptor::next_ns() const noexcept {
  return pending_.empty() ? kNoDeadline : pending_.front().deadline_ns;
}

uint32_t Acceptor::expire(uint64_t now_ns) noexcept {
  uint32_t expired = 0;
  for (; !pending_.empty() && pending_.front().deadline_ns <= now_ns; ++expired)
    cut(pending_.front(), Status::kTimedOut, "said no hello in time");
  return expired;
}

}  // namespace towline::tcp
