#include "stalling_proxy.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "support/loopback.h"

namespace towline::faults {

namespace {

constexpr std::size_t kPieceBytes = 256 << 10;
constexpr std::size_t kMostInPassing = 4 << 20;  // kept of a connection that does not stand still

}  // namespace

StallingProxy::StallingProxy(uint16_t to) : to_(to), listener_(support::listen_anywhere(port_)) {
  thread_ = std::thread([this] { run(); });
}

StallingProxy::~StallingProxy() {
  stop_ = true;
  thread_.join();
  close(listener_);
  for (const Flow& flow : flows_) {
    close(flow.client);
    close(flow.server);
  }
}

void StallingProxy::stall() {
  const std::lock_guard lock(mutex_);
  for (Flow& flow : flows_) flow.stalled = flow.was_stalled = true;
}

void StallingProxy::release() {
  const std::lock_guard lock(mutex_);
  for (Flow& flow : flows_) flow.stalled = false;
}

uint64_t StallingProxy::kept_bytes() {
  const std::lock_guard lock(mutex_);
  uint64_t bytes = 0;
  for (const Flow& flow : flows_)
    if (flow.stalled) bytes += flow.kept.size() - flow.sent;
  return bytes;
}

bool StallingProxy::all_ended() {
  const std::lock_guard lock(mutex_);
  return std::none_of(flows_.begin(), flows_.end(), [](const Flow& flow) { return flow.was_stalled; });
}

void StallingProxy::admit() {
  Flow flow;
  flow.client = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
  if (flow.client < 0) return;
  flow.server = support::connect_to(to_);
  if (flow.server < 0) {
    close(flow.client);
    return;
  }
  flows_.push_back(std::move(flow));
}

void StallingProxy::take_from_client(Flow& flow) {
  const std::size_t before = flow.kept.size();
  flow.kept.resize(before + kPieceBytes);
  const ssize_t got = recv(flow.client, flow.kept.data() + before, kPieceBytes, MSG_DONTWAIT);
  flow.kept.resize(before + static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  flow.client_ended = got == 0 || (got < 0 && errno != EAGAIN);
}

void StallingProxy::give_to_server(Flow& flow) {
  const std::size_t bytes = std::min(flow.kept.size() - flow.sent, kPieceBytes);
  const ssize_t sent = send(flow.server, flow.kept.data() + flow.sent, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent < 0 && errno != EAGAIN) flow.sent = flow.kept.size();  // nobody takes it
  if (sent > 0) flow.sent += static_cast<std::size_t>(sent);
  if (flow.sent != flow.kept.size()) return;
  flow.kept.clear();
  flow.sent = 0;
}

// False: the server has ended the connection.
bool StallingProxy::pass_to_client(Flow& flow) {
  std::vector<char> piece(kPieceBytes);
  const ssize_t got = recv(flow.server, piece.data(), piece.size(), MSG_DONTWAIT);
  if (got == 0 || (got < 0 && errno != EAGAIN)) return false;
  if (got > 0 && !flow.client_ended)
    (void)support::send_all(flow.client, piece.data(), static_cast<std::size_t>(got));
  return true;
}

void StallingProxy::run() {
  while (!stop_) {
    std::vector<pollfd> looked = {{listener_, POLLIN, 0}};
    {
      const std::lock_guard lock(mutex_);
      for (const Flow& flow : flows_) {
        const bool takes = !flow.client_ended && (flow.stalled || flow.kept.size() < kMostInPassing);
        const bool gives = !flow.stalled && !flow.kept.empty();
        looked.push_back({flow.client, static_cast<short>(takes ? POLLIN : 0), 0});
        if (flow.client_ended) looked.back().fd = -1;  // its end would be told again and again
        looked.push_back({flow.server, static_cast<short>(gives ? POLLIN | POLLOUT : POLLIN), 0});
      }
    }
    poll(looked.data(), looked.size(), support::kLookMs);
    const std::lock_guard lock(mutex_);
    for (auto flow = flows_.begin(); flow != flows_.end();) {
      if (!flow->client_ended && (flow->stalled || flow->kept.size() < kMostInPassing))
        take_from_client(*flow);
      if (!flow->stalled && !flow->kept.empty()) give_to_server(*flow);
      if (!flow->stalled && flow->kept.empty() && flow->client_ended && !flow->end_passed_on) {
        shutdown(flow->server, SHUT_WR);
        flow->end_passed_on = true;
      }
      if (pass_to_client(*flow)) {
        ++flow;
        continue;
      }
      close(flow->client);
      close(flow->server);
      flow = flows_.erase(flow);
    }
    if ((looked.front().revents & POLLIN) != 0) admit();
  }
}

}  // namespace towline::faults
