#include "rank.h"

#include <fmt/format.h>
#include <poll.h>

#include "failure.h"

namespace tool {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using towline::Status;

namespace {

constexpr auto kLostFor = std::chrono::seconds{5};

}  // namespace

void Rank::send(towline::Peer& peer, std::string message) {
  Outgoing& outgoing = outbox_[std::string{peer.name()}];
  outgoing.peer = &peer;
  outgoing.messages.push_back(std::move(message));
  flush();
}

bool Rank::sent_all() const {
  for (const auto& [name, outgoing] : outbox_) {
    if (!outgoing.messages.empty()) return false;
  }
  return true;
}

bool Rank::flush() {
  bool waiting = false;
  for (auto& [name, outgoing] : outbox_) {
    while (!outgoing.messages.empty()) {
      const Status status = outgoing.peer->send(outgoing.messages.front());
      // Without credit, or while a lost connection is restored, the message is sent later. A rank that waits
      // for it gives up after a while.
      if (status == Status::kAgain || status == Status::kPeerLost || status == Status::kTimedOut ||
          status == Status::kUnreachable) {
        break;
      }
      if (is_error(status)) {
        throw Failure{fmt::format("could not send to '{}': {}", name, status_text(status))};
      }
      outgoing.messages.pop_front();
    }
    waiting = waiting || !outgoing.messages.empty();
  }
  return waiting;
}

void Rank::listen_to_parent() {
  while (auto message = parent_.try_receive()) {
    if (message->value("command", "") == "stop") throw Stopped{};
    from_parent_.push_back(std::move(*message));
  }
  if (parent_.closed()) throw Stopped{};
}

void Rank::wait(milliseconds timeout) {
  listen_to_parent();
  const bool waiting = flush();
  pollfd waits[] = {{agent_.event_fd(), POLLIN, 0}, {parent_.fd(), POLLIN, 0}};
  (void)::poll(waits, 2,
               static_cast<int>(waiting ? std::min(timeout, milliseconds{1}).count() : timeout.count()));
  listen_to_parent();
}

nlohmann::json Rank::wait_for_parent(const std::string& key) {
  while (true) {
    listen_to_parent();
    while (!from_parent_.empty()) {
      nlohmann::json message = std::move(from_parent_.front());
      from_parent_.pop_front();
      if (message.contains(key)) return message;
    }
    pollfd wait{parent_.fd(), POLLIN, 0};
    (void)::poll(&wait, 1, 1000);
  }
}

void Absence::note(const towline::Peer* lost) {
  if (lost == nullptr) return since_.reset();
  const auto now = steady_clock::now();
  if (!since_) since_ = now;
  if (now - *since_ > kLostFor) throw Failure{fmt::format("'{}' is lost", lost->name())};
}

}  // namespace tool
