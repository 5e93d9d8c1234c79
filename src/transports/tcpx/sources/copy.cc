#include "transports/tcpx/sources/copy.h"

#include <sys/socket.h>

#include <cerrno>

#include "base/error.h"

namespace towline::tcpx {

framing::IoResult socket_failure(int error) noexcept {
  if (error == EAGAIN || error == EWOULDBLOCK || error == EINTR) return framing::IoResult::again();
  const bool gone = error == ECONNRESET || error == EPIPE || error == ETIMEDOUT || error == EHOSTUNREACH ||
                    error == ENETUNREACH || error == ECONNABORTED;
  return framing::IoResult::error(gone ? Status::kPeerLost : status_from_errno(error), error);
}

Polled receive_linear(int socket, uint8_t* linear, std::size_t most, std::span<Fragment> out) noexcept {
  const ssize_t n = ::recv(socket, linear, most, MSG_DONTWAIT);
  if (n == 0) return {framing::IoResult::closed(), 0, false};
  if (n < 0) return {socket_failure(errno), 0, false};
  out[0] = {0, static_cast<uint32_t>(n), 0, 0, true};
  return {framing::IoResult::moved(static_cast<std::size_t>(n)), 1, false};
}

}  // namespace towline::tcpx
