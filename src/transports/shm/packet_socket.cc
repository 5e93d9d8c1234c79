#include "transports/shm/packet_socket.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include "base/error.h"

namespace towline::shm {

void PacketSocket::open(UniqueFd socket) {
  socket_ = std::move(socket);
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
  waiting_.clear();
}

Status PacketSocket::send(std::vector<uint8_t> packet, std::vector<int> fds) {
  if (!is_open()) return Status::kClosed;
  if (waiting_.empty()) {
    const Status status = send_packet(socket_.get(), packet, fds);
    if (status != Status::kAgain) return status;
  }
  if (waiting_.size() >= kMostWaiting) return Status::kLimitExceeded;
  Waiting waiting{std::move(packet), {}};
  for (const int fd : fds) waiting.fds.push_back(duplicate_fd(fd));
  waiting_.push_back(std::move(waiting));
  watch_for_room();
  return Status::kOk;
}

Status PacketSocket::flush() noexcept {
  while (is_open() && !waiting_.empty()) {
    const Waiting& first = waiting_.front();
    int fds[kMaxPacketFds];
    size_t count = 0;
    for (const UniqueFd& fd : first.fds)
      if (count < kMaxPacketFds) fds[count++] = fd.get();
    const Status status = send_packet(socket_.get(), first.packet, {fds, count});
    if (status == Status::kAgain) return Status::kOk;
    if (status != Status::kOk) return status;
    waiting_.pop_front();
  }
  watch_for_room();
  return Status::kOk;
}

void PacketSocket::watch_for_room() noexcept {
  // While congested nothing is read either: whoever sends requests has to take the answers.
  const uint32_t wanted = EPOLLRDHUP | (congested() ? 0u : EPOLLIN) | (waiting_.empty() ? 0u : EPOLLOUT);
  if (!is_open() || wanted == watched_) return;
  watched_ = wanted;
  host_.rewatch(worker_, socket_.get(), wanted, ready_, argument_);
}

}  // namespace towline::shm
