#include "gpu/piece_sockets.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <thread>

#include "base/error.h"
#include "base/os/packets.h"

namespace towline::cuda {

int poll_ms(Deadline deadline) {
  const uint64_t left = deadline.remaining_ns(monotonic_now_ns()) / kMillisecondNs;
  return static_cast<int>(std::min<uint64_t>(left + 1, 1000));
}

bool of_this_user(int socket) noexcept try {
  return packets::peer_user(socket) == geteuid();
} catch (const core::Error&) {
  return false;
}

int connect_before(int socket, const std::string& name, Deadline deadline) {
  constexpr auto kPause = std::chrono::milliseconds(1);
  for (;;) {
    const int error = packets::connect_to(socket, {true, name});
    if (error != EAGAIN && error != EINTR) return error;
    if (deadline.passed(monotonic_now_ns())) return ETIMEDOUT;
    std::this_thread::sleep_for(kPause);  // nothing tells when the backlog has room
  }
}

}  // namespace towline::cuda
