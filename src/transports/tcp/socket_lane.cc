#include "transports/tcp/socket_lane.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <string_view>

#include "base/clock.h"
#include "base/error.h"
#include "base/os/socket_address.h"

namespace towline::tcp {
namespace {

// After so many empty reads a further lane is looked at once in so many passes.
constexpr uint32_t kPatience = 64;
constexpr uint32_t kSeldom = 16;
// Leaving epoll and coming back costs as much as a few arrivals reported by epoll.
constexpr uint32_t kReadsBeforeRest = 64;

// The system copies what is sent into pages of its own, each call's bytes behind the last one's. Blocks of a
// page that lie there as they lie in memory go through loopback up to a seventh faster than ones that a
// header of 64 bytes has moved on.
constexpr uint32_t kPayloadAlignment = 4096;

void set(int fd, int level, int option, int value) noexcept {
  setsockopt(fd, level, option, &value, sizeof value);
}

// Over loopback congestion control is useless: no packet is lost, and the only queue is the receiver's. But a
// congestion control with pacing (bbr) still waits for timers, which cost WRITEs of large blocks up to half
// of their speed. Reno is in every kernel and allowed for every process.
void choose_congestion_control(int fd, const std::string& configured) noexcept {
  const bool loopback = SocketAddress::peer_of(fd).is_loopback();
  const std::string_view name = configured.empty() && loopback ? "reno" : std::string_view(configured);
  if (!name.empty())
    setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name.data(), static_cast<socklen_t>(name.size()));
}

framing::IoResult failed() noexcept {
  const int error = errno;
  if (error == EAGAIN || error == EWOULDBLOCK || error == EINTR) return framing::IoResult::again();
  const bool gone = error == ECONNRESET || error == EPIPE || error == ETIMEDOUT || error == EHOSTUNREACH ||
                    error == ENETUNREACH || error == ECONNABORTED;
  return framing::IoResult::error(gone ? Status::kPeerLost : status_from_errno(error), error);
}

}  // namespace

void tune_socket(int fd, const Options& options) noexcept {
  if (options.socket_buffer != 0) {
    set(fd, SOL_SOCKET, SO_SNDBUF, static_cast<int>(options.socket_buffer));
    set(fd, SOL_SOCKET, SO_RCVBUF, static_cast<int>(options.socket_buffer));
  }
  set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set(fd, IPPROTO_TCP, TCP_KEEPIDLE, 10);
  set(fd, IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
  // 0 would be the system's own.
  const uint64_t timeout_ms = std::clamp<uint64_t>(options.user_timeout_ns / kMillisecondNs, 1, INT_MAX);
  set(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(timeout_ms));
}

SocketLane::SocketLane(const plugin::Host& host, uint32_t worker, UniqueFd fd, bool first,
                       uint32_t frame_bytes, const std::string& congestion, towline_ready_fn ready,
                       void* argument)
    : host_(host),
      worker_(worker),
      fd_(std::move(fd)),
      first_(first),
      frame_bytes_(frame_bytes),
      ready_(ready),
      argument_(argument),
      name_(fmt::format("{} -> {}", SocketAddress::local_of(fd_.get()).text(),
                        SocketAddress::peer_of(fd_.get()).text())) {
  choose_congestion_control(fd_.get(), congestion);
}

framing::IoResult SocketLane::write(std::span<const iovec> pieces) noexcept {
  if (!fd_.valid()) return framing::IoResult::closed();
  ssize_t n = 0;
  if (pieces.size() == 1) {
    n = ::send(fd_.get(), pieces[0].iov_base, pieces[0].iov_len, MSG_NOSIGNAL | MSG_DONTWAIT);
  } else {
    msghdr message = {};
    message.msg_iov = const_cast<iovec*>(pieces.data());
    message.msg_iovlen = pieces.size();
    n = ::sendmsg(fd_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  return n > 0 ? framing::IoResult::moved(static_cast<std::size_t>(n)) : failed();
}

framing::IoResult SocketLane::read(std::span<const iovec> pieces) noexcept {
  if (!fd_.valid()) return framing::IoResult::closed();
  if (!first_ && empty_reads_ >= kPatience && ++empty_reads_ % kSeldom != 0) {
    return framing::IoResult::again();
  }
  const ssize_t n = pieces.size() == 1
                        ? ::recv(fd_.get(), pieces[0].iov_base, pieces[0].iov_len, MSG_DONTWAIT)
                        : ::readv(fd_.get(), pieces.data(), static_cast<int>(pieces.size()));
  if (n > 0) {
    empty_reads_ = 0;
    if (++reads_ >= kReadsBeforeRest && watched_ != 0) rest();
    return framing::IoResult::moved(static_cast<std::size_t>(n));
  }
  if (empty_reads_ < kPatience) ++empty_reads_;
  return n == 0 ? framing::IoResult::closed() : failed();
}

bool SocketLane::arm(bool want_write) noexcept {
  if (!fd_.valid()) return true;
  empty_reads_ = 0;  // whatever wakes us may have come here
  reads_ = 0;
  const uint32_t wanted = want_write ? EPOLLIN | EPOLLOUT : EPOLLIN;
  if (watched_ == wanted) return false;
  const int32_t status = known_ ? host_.rewatch(worker_, fd_.get(), wanted, ready_, argument_)
                                : host_.watch(worker_, fd_.get(), wanted, ready_, argument_);
  if (status != TOWLINE_OK) return true;  // never sleep on a socket that can't wake us
  known_ = true;
  watched_ = wanted;
  return false;
}

void SocketLane::rest() noexcept {
  if (host_.rewatch(worker_, fd_.get(), 0, ready_, argument_) == TOWLINE_OK) watched_ = 0;
}

void SocketLane::close() noexcept {
  if (!fd_.valid()) return;
  if (known_) host_.unwatch(worker_, fd_.get());
  known_ = false;
  watched_ = 0;
  fd_.reset();
}

void SocketLane::abandon() noexcept {
  if (!fd_.valid()) return;
  const linger reset = {1, 0};
  setsockopt(fd_.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
  close();
}

std::string SocketLane::describe() const { return name_; }

framing::Lane::Traits SocketLane::traits() const noexcept {
  Traits traits;
  traits.frame_bytes = frame_bytes_;
  traits.payload_alignment = kPayloadAlignment;
  return traits;
}

}  // namespace towline::tcp
