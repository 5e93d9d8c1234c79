#include "transports/shm/packet_socket.h"

#include <sys/epoll.h>
#include <sys/socket.h>

namespace towline::shm {

namespace {

// Descriptors that a peer leaves in its socket count against this user's limit of descriptors: some twenty
// packets fit, however long the peer does not read.
constexpr int kUnreadBytes = 8 << 10;

}  // namespace

void PacketSocket::open(UniqueFd socket) {
  socket_ = std::move(socket);
  (void)setsockopt(socket_.get(), SOL_SOCKET, SO_SNDBUF, &kUnreadBytes, sizeof kUnreadBytes);
  watched_ = EPOLLIN | EPOLLRDHUP;
  if (const int32_t status = host_.watch(worker_, socket_.get(), watched_, ready_, argument_);
      status != TOWLINE_OK) {
    socket_.reset();
    throw plugin::Failure(static_cast<Status>(status), "shm: the worker can't watch the socket");
  }
}

void PacketSocket::shut() noexcept {
  if (!is_open()) return;
  shut_ = true;
  host_.unwatch(worker_, socket_.get());
  shutdown(socket_.get(), SHUT_RDWR);  // what was sent still arrives
}

void PacketSocket::watch_for_room(bool wanted) noexcept {
  const uint32_t events = EPOLLIN | EPOLLRDHUP | (wanted ? EPOLLOUT : 0u);
  if (!is_open() || events == watched_) return;
  watched_ = events;
  host_.rewatch(worker_, socket_.get(), events, ready_, argument_);
}

}  // namespace towline::shm
