#include "rendezvous/sockets.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <string>
#include <thread>

#include "base/error.h"

namespace towline::rendezvous {

void set_no_delay(int fd) noexcept {
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

void set_congestion(int fd, const std::string& name) noexcept {
  ::setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name.data(), static_cast<socklen_t>(name.size()));
}

int poll_timeout_ms(Deadline deadline, int most_ms) noexcept {
  const uint64_t left = deadline.remaining_ns(monotonic_now_ns());
  if (left / kMillisecondNs >= static_cast<uint64_t>(most_ms)) return most_ms;
  return static_cast<int>((left + kMillisecondNs - 1) / kMillisecondNs);
}

namespace {

// One attempt; an errno, or 0 and the socket.
int try_dial(const SocketAddress& address, Deadline deadline, UniqueFd& socket) {
  socket = open_stream_socket(address.family());
  int error = start_connect(socket.get(), address);
  while (error == EINPROGRESS) {
    pollfd polled = {socket.get(), POLLOUT, 0};
    const int ready = ::poll(&polled, 1, poll_timeout_ms(deadline, 3000));
    if (ready > 0)
      error = finish_connect(socket.get());
    else if (ready == 0)
      error = ETIMEDOUT;
  }
  if (error == 0) set_no_delay(socket.get());
  return error;
}

}  // namespace

UniqueFd dial(const Endpoint& endpoint, Deadline deadline, bool patient) {
  for (uint64_t pause_ns = kMillisecondNs;; pause_ns = std::min(pause_ns * 2, 100 * kMillisecondNs)) {
    int error = 0;
    for (const SocketAddress& address : resolve(endpoint, deadline)) {
      UniqueFd socket;
      error = try_dial(address, deadline, socket);
      if (error == 0) return socket;
    }
    const uint64_t left = deadline.remaining_ns(monotonic_now_ns());
    if (left == 0)
      fail(Status::kTimedOut, "{} does not answer in time: {}", endpoint.text(), errno_text(error));
    if (!patient) fail_errno(error, "cannot connect to {}", endpoint.text());
    std::this_thread::sleep_for(std::chrono::nanoseconds(std::min(pause_ns, left)));
  }
}

Status send_all(int fd, std::span<const uint8_t> bytes, Deadline deadline) noexcept {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) {
      bytes = bytes.subspan(static_cast<size_t>(sent));
    } else if (errno == EAGAIN) {
      if (deadline.passed(monotonic_now_ns())) return Status::kTimedOut;
      pollfd polled = {fd, POLLOUT, 0};
      ::poll(&polled, 1, poll_timeout_ms(deadline, 1000));
    } else if (errno != EINTR) {
      return Status::kPeerLost;
    }
  }
  return Status::kOk;
}

Status receive_all(int fd, std::span<uint8_t> bytes, Deadline deadline) noexcept {
  while (!bytes.empty()) {
    const ssize_t got = ::recv(fd, bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (got > 0) {
      bytes = bytes.subspan(static_cast<size_t>(got));
    } else if (got == 0) {
      return Status::kPeerLost;
    } else if (errno == EAGAIN) {
      if (deadline.passed(monotonic_now_ns())) return Status::kTimedOut;
      pollfd polled = {fd, POLLIN, 0};
      ::poll(&polled, 1, poll_timeout_ms(deadline, 1000));
    } else if (errno != EINTR) {
      return Status::kPeerLost;
    }
  }
  return Status::kOk;
}

}  // namespace towline::rendezvous
