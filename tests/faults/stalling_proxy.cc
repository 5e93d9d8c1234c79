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
  for (const Flow& flow : flows_) close_both(flow);
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
    if (flow.stalled) bytes += flow.up.kept.size() - flow.up.sent;
  return bytes;
}

bool StallingProxy::all_ended() {
  const std::lock_guard lock(mutex_);
  return std::none_of(flows_.begin(), flows_.end(), [](const Flow& flow) { return flow.was_stalled; });
}

void StallingProxy::cut_after(uint64_t bytes, Cut how) {
  const std::lock_guard lock(mutex_);
  how_ = how;
  cut_at_ = passed_ + bytes;
  if (bytes == 0) cut();
}

void StallingProxy::cut() {
  cut_at_ = UINT64_MAX;
  cut_ = true;
  for (Flow& flow : flows_) flow.cut = true;
}

bool StallingProxy::is_cut() {
  const std::lock_guard lock(mutex_);
  return cut_;
}

void StallingProxy::heal() {
  const std::lock_guard lock(mutex_);
  cut_ = false;
}

void StallingProxy::close_both(const Flow& flow) {
  close(flow.up.from);
  close(flow.up.to);
}

void StallingProxy::admit() {
  const int client = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
  if (client < 0) return;
  const int server = support::connect_to(to_);
  if (server < 0) {
    close(client);
    return;
  }
  Flow flow;
  flow.up.from = flow.down.to = client;
  flow.down.from = flow.up.to = server;
  flow.cut = cut_;
  flows_.push_back(std::move(flow));
}

bool StallingProxy::takes(const Flow& flow, const Way& way) const {
  if (way.ended) return false;
  if (flow.cut) return how_ == Cut::kSwallows;
  return (flow.stalled && &way == &flow.up) || way.kept.size() < kMostInPassing;
}

bool StallingProxy::gives(const Flow& flow, const Way& way) {
  return !flow.cut && !way.kept.empty() && !(flow.stalled && &way == &flow.up);
}

void StallingProxy::take(Way& way) {
  const std::size_t before = way.kept.size();
  way.kept.resize(before + kPieceBytes);
  const ssize_t got = recv(way.from, way.kept.data() + before, kPieceBytes, MSG_DONTWAIT);
  way.kept.resize(before + static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  way.ended = got == 0 || (got < 0 && errno != EAGAIN);
}

void StallingProxy::give(Way& way) {
  const std::size_t bytes = std::min(way.kept.size() - way.sent, kPieceBytes);
  const ssize_t sent = send(way.to, way.kept.data() + way.sent, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent < 0 && errno != EAGAIN) way.refused = true;
  if (sent > 0) {
    way.sent += static_cast<std::size_t>(sent);
    passed_ += static_cast<uint64_t>(sent);
  }
  if (!way.refused && way.sent != way.kept.size()) return;
  way.kept.clear();
  way.sent = 0;
}

void StallingProxy::run() {
  while (!stop_) {
    std::vector<pollfd> looked = {{listener_, POLLIN, 0}};
    {
      const std::lock_guard lock(mutex_);
      for (const Flow& flow : flows_) {
        const auto look = [&](const Way& in, const Way& out) {
          const int events = (takes(flow, in) ? POLLIN : 0) | (gives(flow, out) ? POLLOUT : 0);
          // The end of one that nothing is wanted of would be told again and again.
          looked.push_back({events == 0 ? -1 : in.from, static_cast<short>(events), 0});
        };
        look(flow.up, flow.down);
        look(flow.down, flow.up);
      }
    }
    poll(looked.data(), looked.size(), support::kLookMs);
    const std::lock_guard lock(mutex_);
    for (auto flow = flows_.begin(); flow != flows_.end();) {
      for (Way* way : {&flow->up, &flow->down}) {
        if (takes(*flow, *way)) take(*way);
        if (flow->cut) way->kept.clear();
        if (gives(*flow, *way)) give(*way);
        const bool held = flow->cut || (flow->stalled && way == &flow->up);
        if (!held && way->kept.empty() && way->ended && !way->end_passed_on) {
          shutdown(way->to, SHUT_WR);
          way->end_passed_on = true;
        }
        if (passed_ >= cut_at_) cut();
      }
      const bool over = !flow->cut && flow->down.ended && flow->down.kept.empty();  // the server has ended it
      if (over) close_both(*flow);
      flow = over ? flows_.erase(flow) : std::next(flow);
    }
    if ((looked.front().revents & POLLIN) != 0) admit();
  }
}

}  // namespace towline::faults
