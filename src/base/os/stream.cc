#include "base/os/stream.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>

#include <algorithm>
#include <chrono>
#include <climits>
#include <ctime>
#include <thread>

#include "base/error.h"

namespace towline {
namespace {

constexpr uint64_t kLongestAttemptNs = 3 * kSecondNs;       // of dial(), at one address of several
constexpr uint64_t kLongestPauseNs = 100 * kMillisecondNs;  // of dial(), between attempts
constexpr uint64_t kLongestWaitNs = 3600 * kSecondNs;       // of one system call

void set(int fd, int level, int option, int value) noexcept {
  ::setsockopt(fd, level, option, &value, sizeof value);
}

}  // namespace

int poll_timeout_ms(Deadline deadline, int most_ms) noexcept {
  const uint64_t left = deadline.remaining_ns(monotonic_now_ns());
  if (left / kMillisecondNs >= static_cast<uint64_t>(most_ms)) return most_ms;
  return static_cast<int>((left + kMillisecondNs - 1) / kMillisecondNs);
}

// A signal is like having moved nothing: the caller comes back.
StreamResult Stream::not_moved(ssize_t n) noexcept {
  if (n == 0) return {0, StreamResult::Kind::kEnded, 0};
  const int error = errno;
  const bool blocked = error == EAGAIN || error == EWOULDBLOCK || error == EINTR;
  return {0, blocked ? StreamResult::Kind::kBlocked : StreamResult::Kind::kFailed, blocked ? 0 : error};
}

// ---- connecting

int Stream::connect(const SocketAddress& address, Deadline deadline, Stream& out,
                    const Meanwhile& meanwhile) {
  Stream stream = open(address.family());
  int error = stream.start_connect(address);
  if (error == EINPROGRESS)
    error = stream.wait(POLLOUT, deadline, meanwhile) != 0 ? stream.finish_connect() : ETIMEDOUT;
  if (error == 0) out = std::move(stream);
  return error;
}

Stream Stream::dial(const Endpoint& endpoint, Deadline deadline, Patience patience,
                    const Meanwhile& meanwhile) {
  for (uint64_t pause_ns = kMillisecondNs;; pause_ns = std::min(pause_ns * 2, kLongestPauseNs)) {
    int error = 0;
    for (const SocketAddress& address : resolve(endpoint, deadline, meanwhile)) {
      Stream stream;
      const Deadline attempt = Deadline::after(monotonic_now_ns(), kLongestAttemptNs);
      error = connect(address, Deadline::at(std::min(attempt.ns(), deadline.ns())), stream, meanwhile);
      if (error != 0) continue;
      stream.tune({});
      return stream;
    }
    const uint64_t left = deadline.remaining_ns(monotonic_now_ns());
    if (left == 0)
      fail(Status::kTimedOut, "{} does not answer in time: {}", endpoint.text(), errno_text(error));
    const bool again =
        patience == Patience::kUntilDeadline || (patience == Patience::kForPort && error == EADDRNOTAVAIL);
    if (!again) fail_errno(error, "cannot connect to {}", endpoint.text());
    if (meanwhile) meanwhile();
    std::this_thread::sleep_for(std::chrono::nanoseconds(std::min(pause_ns, left)));
  }
}

// ---- securing

StreamResult Stream::shake_hands() noexcept {
  return session_ == nullptr ? StreamResult{0, StreamResult::Kind::kMoved, 0} : session_->shake_hands(fd());
}

Status Stream::shake_hands(Deadline deadline, const Meanwhile& meanwhile) {
  for (;;) {
    const StreamResult shaken = shake_hands();
    if (shaken.moved()) return Status::kOk;
    if (shaken.over()) return why() != nullptr ? Status::kPermissionDenied : Status::kPeerLost;
    if (wait(POLLIN, deadline, meanwhile) == 0) return Status::kTimedOut;
  }
}

StreamResult Stream::send_secured(std::span<const iovec> pieces) noexcept {
  return session_->write(fd(), pieces);
}

StreamResult Stream::receive_secured(std::span<const iovec> pieces) noexcept {
  return session_->read(fd(), pieces);
}

std::string Stream::failure(const StreamResult& result) const {
  if (const char* const text = why(); text != nullptr) return text;
  return result.kind == StreamResult::Kind::kEnded ? "the other side closed the connection"
                                                   : errno_text(result.error);
}

// ---- waiting

short Stream::wait(short events, Deadline deadline) const noexcept {
  if ((events & POLLIN) != 0 && unread()) return POLLIN;
  if ((events & POLLIN) != 0 && unsent()) events |= POLLOUT;
  for (;;) {
    const uint64_t left = std::min(deadline.remaining_ns(monotonic_now_ns()), kLongestWaitNs);
    const timespec timeout = {static_cast<time_t>(left / kSecondNs), static_cast<long>(left % kSecondNs)};
    pollfd watched = {fd(), events, 0};
    const int found = ::ppoll(&watched, 1, &timeout, nullptr);
    if (found > 0) return watched.revents;
    if (found < 0 && errno != EINTR) return POLLERR;  // reading or writing it says why
    if (left == 0) return 0;
  }
}

short Stream::wait(short events, Deadline deadline, const Meanwhile& meanwhile) const {
  if (!meanwhile) return wait(events, deadline);
  for (;;) {
    const uint64_t now = monotonic_now_ns();
    const short found = wait(events, Deadline::at(std::min(deadline.ns(), now + kLongestPauseNs)));
    if (found != 0 || deadline.passed(monotonic_now_ns())) return found;
    meanwhile();
  }
}

bool Stream::ready(short events) const noexcept {
  if ((events & POLLIN) != 0 && unread()) return true;
  pollfd watched = {fd(), events, 0};
  return ::poll(&watched, 1, 0) > 0;
}

// ---- moving all

Status Stream::write_all(std::span<const uint8_t> bytes, Deadline deadline) noexcept {
  if (const Status shaken = shake_hands(deadline); is_error(shaken))
    return shaken == Status::kTimedOut ? shaken : Status::kPeerLost;
  while (!bytes.empty()) {
    const StreamResult sent = write(bytes.data(), bytes.size());
    if (sent.over()) return Status::kPeerLost;
    bytes = bytes.subspan(sent.bytes);
    if (sent.blocked() && wait(POLLOUT, deadline) == 0) return Status::kTimedOut;
  }
  return Status::kOk;
}

Status Stream::read_all(std::span<uint8_t> bytes, Deadline deadline) noexcept {
  while (!bytes.empty()) {
    const StreamResult got = read(bytes.data(), bytes.size());
    if (got.over()) return Status::kPeerLost;
    bytes = bytes.subspan(got.bytes);
    if (got.blocked() && wait(POLLIN, deadline) == 0) return Status::kTimedOut;
  }
  return Status::kOk;
}

// ---- options

void Stream::tune(const StreamTuning& tuning) noexcept {
  if (tuning.buffer_bytes != 0) {
    const auto bytes = static_cast<int>(std::min<uint64_t>(tuning.buffer_bytes, INT_MAX));
    set(fd(), SOL_SOCKET, SO_SNDBUF, bytes);
    set(fd(), SOL_SOCKET, SO_RCVBUF, bytes);
  }
  set(fd(), IPPROTO_TCP, TCP_NODELAY, 1);
  if (tuning.keep_alive) {
    set(fd(), SOL_SOCKET, SO_KEEPALIVE, 1);
    set(fd(), IPPROTO_TCP, TCP_KEEPIDLE, 10);
    set(fd(), IPPROTO_TCP, TCP_KEEPINTVL, 5);
    set(fd(), IPPROTO_TCP, TCP_KEEPCNT, 3);
  }
  if (tuning.timeout_ns != 0) {
    const uint64_t timeout_ms = std::clamp<uint64_t>(tuning.timeout_ns / kMillisecondNs, 1, INT_MAX);
    set(fd(), IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(timeout_ms));
  }
}

void Stream::set_congestion(std::string_view name) noexcept {
  ::setsockopt(fd(), IPPROTO_TCP, TCP_CONGESTION, name.data(), static_cast<socklen_t>(name.size()));
}

void Stream::reset_at_close() noexcept {
  const linger reset = {1, 0};
  ::setsockopt(fd(), SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
}

}  // namespace towline
