// Incoming connections until a worker has taken them over: worker 0 listens, reads and checks the hello, and
// puts the connection into the inbox of its worker.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/clock.h"
#include "base/error.h"
#include "base/short_text.h"
#include "transports/shm/backend.h"

namespace towline::shm {

namespace {

constexpr size_t kMostVisitors = 64;  // connected and silent
constexpr uint64_t kHelloWithinNs = 5 * kSecondNs;
constexpr uint32_t kMostAcceptsAtOnce = 64;

}  // namespace

void Backend::accept_visitors(uint32_t) {
  for (uint32_t i = 0; i < kMostAcceptsAtOnce; ++i) {
    int error = 0;
    UniqueFd socket = accept_visitor(listener_.get(), spare_, error);
    if (error == EMFILE) {
      host().log(1, "shm: out of file descriptors, a connection was turned away");
      continue;
    }
    if (!socket) return;
    if (visitors_.size() >= kMostVisitors) dismiss(*visitors_.front());
    auto visitor = std::make_unique<Visitor>(Visitor{this, std::move(socket), host().now_ns()});
    const int fd = visitor->socket.get();
    if (host().watch(0, fd, EPOLLIN, &plugin::ready<&Visitor::socket_ready>, visitor.get()) == TOWLINE_OK)
      visitors_.push_back(std::move(visitor));
  }
}

void Backend::broken(const char* why) noexcept {
  host().log(1, ShortText("shm: accepting a connection failed: {}", why));
}

void Backend::turn_away(Visitor& visitor, const char* why) noexcept {
  host().log(1, ShortText("shm: a connection is turned away: {}", why));
  dismiss(visitor);
}

void Backend::dismiss(Visitor& visitor) noexcept {
  if (visitor.socket) host().unwatch(0, visitor.socket.get());
  std::erase_if(visitors_, [&](const auto& entry) { return entry.get() == &visitor; });
}

void Backend::dismiss_slow_visitors(uint64_t now_ns) noexcept {
  while (!visitors_.empty() && now_ns > visitors_.front()->since_ns + kHelloWithinNs)
    dismiss(*visitors_.front());
}

void Backend::hear(Visitor& visitor) {
  Packet packet;
  const Status received = receive_packet(visitor.socket.get(), packet);
  if (received == Status::kAgain) return;
  std::optional<Hello> hello;
  std::string why;
  Status status = received == Status::kOk ? check_hello(visitor, packet, hello, why) : Status::kProtocol;
  if (status != Status::kOk) {
    if (!why.empty()) {
      send_packet(visitor.socket.get(), encode(Refuse{status, why}), {});
      host().log(3, "shm: refused a connection: " + why);
    }
    return dismiss(visitor);
  }
  host().unwatch(0, visitor.socket.get());
  const uint32_t worker = hello->worker % worker_count_;
  workers_[worker].inbox.put({std::move(visitor.socket), std::move(*hello), std::move(packet.fds[0])});
  dismiss(visitor);
  host().wake(worker);
}

Status Backend::check_hello(const Visitor& visitor, const Packet& packet, std::optional<Hello>& hello,
                            std::string& why) {
  const uint16_t version = packet_version(packet.span());
  if (version == 0) return Status::kProtocol;  // not of our kind: no answer
  try {
    check_user(visitor.socket.get());
  } catch (const plugin::Failure& failure) {
    why = failure.what();
    return failure.status();
  }
  hello = decode_hello(packet.span());
  if (!hello) {
    why =
        fmt::format("its hello (version {}) does not decode; this side speaks version {}", version, kVersion);
    return Status::kProtocol;
  }
  if (!std::equal(std::begin(hello->target), std::end(hello->target), cookie_)) {
    why = "it is meant for another agent than the one that listens here";
    return Status::kPeerRestarted;
  }
  if (packet.fds_lost || packet.fd_count == 0) {
    why =
        packet.fds_lost ? "the agent is out of file descriptors" : "its hello came without the rings' memory";
    return packet.fds_lost ? Status::kLimitExceeded : Status::kProtocol;
  }
  return Status::kOk;
}

void Backend::check_user(int socket) const {
  if (settings_.any_user) return;
  const uid_t user = peer_user(socket);
  if (user != geteuid())
    throw plugin::Failure(
        Status::kPermissionDenied,
        fmt::format("shm: the peer runs as user {}, this process as {} (shm.any_user allows that)", user,
                    geteuid()));
}

void Backend::welcome(uint32_t worker, Greeted greeted) noexcept {
  Connection* connection = nullptr;
  bool taken = false;
  try {
    const UniqueFd refusal{fcntl(greeted.socket.get(), F_DUPFD_CLOEXEC, 0)};
    const auto turn_away = [&](Status status, const char* why) {
      send_packet(refusal.get(), encode(Refuse{status, why}), {});
      host().log(3, ShortText("shm: refused a connection: {}", why));
    };
    connection = workers_[worker].connections.add(std::make_unique<Connection>(*this, worker, nullptr));
    try {
      taken = connection->accept(std::move(greeted));
    } catch (const plugin::Failure& failure) {
      turn_away(failure.status(), failure.what());
    } catch (const Error& error) {
      turn_away(error.code(), error.what());
    } catch (const std::exception& error) {
      turn_away(Status::kInternal, error.what());
    }
  } catch (const std::exception& error) {  // no memory to say no either
    broken(error.what());
  }
  if (connection != nullptr && !taken) release(connection);
}

uint32_t Backend::take_mail(uint32_t worker) noexcept {
  std::vector<Greeted> inbox = workers_[worker].inbox.take();
  for (Greeted& greeted : inbox) welcome(worker, std::move(greeted));
  return static_cast<uint32_t>(inbox.size());
}

}  // namespace towline::shm
