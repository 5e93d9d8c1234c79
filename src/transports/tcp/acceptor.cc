#include "transports/tcp/acceptor.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>

#include "base/clock.h"
#include "base/error.h"
#include "transports/tcp/socket_lane.h"

namespace towline::tcp {
namespace {

constexpr std::size_t kMaxPending = 256;
constexpr uint32_t kAcceptsPerTurn = 64;

}  // namespace

Id incarnation_of(const towline_identity& identity) noexcept {
  return {identity.incarnation[0], identity.incarnation[1]};
}

bool send_reply(const plugin::Host& host, int fd, Status status, const std::string& text) {
  const towline_identity& self = host.self();
  const std::vector<uint8_t> packet = pack(
      Reply{static_cast<int32_t>(status), incarnation_of(self), self.name == nullptr ? "" : self.name, text});
  return ::send(fd, packet.data(), packet.size(), MSG_NOSIGNAL | MSG_DONTWAIT) ==
         static_cast<ssize_t>(packet.size());
}

Acceptor::Acceptor(const plugin::Host& host, const Options& options, std::function<void(Arrival)> arrived)
    : host_(host), options_(options), arrived_(std::move(arrived)) {
  for (const Endpoint& endpoint : options.listen) listen(endpoint);
  if (!options.unix_dir.empty()) {
    const uint64_t* incarnation = host.self().incarnation;
    listen({true, fmt::format("{}/{:016x}.sock", options.unix_dir, incarnation[0] ^ incarnation[1]), 0});
  }
  look_up_advertised();
  for (auto door = doors_.begin(); door != doors_.end(); ++door) {
    const int32_t status = host_.watch(0, door->socket.fd(), EPOLLIN, door_ready, &*door);
    if (status == TOWLINE_OK) continue;
    while (door != doors_.begin()) host_.unwatch(0, (--door)->socket.fd());
    fail(static_cast<Status>(status), "watching the listening socket");
  }
}

Acceptor::~Acceptor() {
  for (const Door& door : doors_) host_.unwatch(0, door.socket.fd());
  for (const Pending& pending : pending_) host_.unwatch(0, pending.fd.get());
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
  for (uint32_t i = 0; i < kAcceptsPerTurn; ++i) {
    int error = 0;
    SocketAddress from;
    UniqueFd fd = door.socket.accept(&from, &error);
    if (error != 0) {
      acceptor.host_.log(1,
                         fmt::format("accepting on {}: {}", door.socket.address().text(), errno_text(error)));
    }
    if (!fd.valid()) return;
    acceptor.admit(std::move(fd), from);
  }
}

void Acceptor::admit(UniqueFd fd, const SocketAddress& from) {
  // The one that came first is the likeliest to be stuck: a hello is there within a round trip.
  if (pending_.size() >= kMaxPending) {
    ++cut_;
    drop(pending_.front());
  }
  tune_socket(fd.get(), options_);
  Pending& pending = pending_.emplace_back();
  pending.owner = this;
  pending.fd = std::move(fd);
  pending.from = from;
  pending.deadline_ns = Deadline::after(host_.now_ns(), options_.handshake_timeout_ns).ns();
  pending.self = std::prev(pending_.end());
  const int32_t status = host_.watch(0, pending.fd.get(), EPOLLIN, pending_ready, &pending);
  if (status != TOWLINE_OK) pending_.pop_back();
}

void Acceptor::pending_ready(void* argument, uint32_t) {
  auto& pending = *static_cast<Pending*>(argument);
  Acceptor& acceptor = *pending.owner;
  switch (pending.reader.receive(pending.fd.get())) {
    case PacketReader::State::kMore:
      return;
    case PacketReader::State::kWhole:
      return acceptor.take_hello(pending);
    case PacketReader::State::kGarbage:
      acceptor.host_.log(2, fmt::format("{} does not speak Towline's tcp: cut", pending.from.text()));
      [[fallthrough]];
    case PacketReader::State::kClosed:
      ++acceptor.cut_;
      acceptor.drop(pending);
  }
}

void Acceptor::take_hello(Pending& pending) {
  Hello hello;
  const char* problem = unpack(pending.reader.packet(), hello);
  if (problem != nullptr) {
    host_.log(2, fmt::format("the hello of {} can't be read: {}", pending.from.text(), problem));
    const bool other_version = pending.reader.packet()[4] != kMajor;
    refuse(pending.fd.get(), other_version ? Status::kUnsupported : Status::kProtocol, problem);
    ++cut_;
    return drop(pending);
  }
  if (hello.target != incarnation_of(host_.self())) {
    refuse(pending.fd.get(), Status::kPeerRestarted, "this is another incarnation");
    ++cut_;
    return drop(pending);
  }
  host_.unwatch(0, pending.fd.get());
  Arrival arrival{std::move(pending.fd), std::move(hello)};
  pending_.erase(pending.self);
  arrived_(std::move(arrival));
}

void Acceptor::refuse(int fd, Status status, const char* text) { send_reply(host_, fd, status, text); }

void Acceptor::drop(Pending& pending) {
  host_.unwatch(0, pending.fd.get());
  pending_.erase(pending.self);
}

uint64_t Acceptor::next_ns() const noexcept {
  return pending_.empty() ? kNoDeadline : pending_.front().deadline_ns;
}

uint32_t Acceptor::expire(uint64_t now_ns) {
  uint32_t cut = 0;
  for (; !pending_.empty() && pending_.front().deadline_ns <= now_ns; ++cut) {
    host_.log(2, fmt::format("{} said no hello in time: cut", pending_.front().from.text()));
    ++cut_;
    drop(pending_.front());
  }
  return cut;
}

}  // namespace towline::tcp
