#include "collectives/pipe.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <cerrno>

namespace towline::collectives {
namespace {

// The rest of prefix and data of a message that lacks `left` bytes. Returns the number of pieces.
size_t rest(PipePrefix& prefix, void* data, size_t data_bytes, size_t left, iovec (&pieces)[2]) noexcept {
  size_t count = 0;
  if (left > data_bytes) {
    const size_t missing = left - data_bytes;
    pieces[count++] = {reinterpret_cast<uint8_t*>(&prefix) + sizeof prefix - missing, missing};
    left = data_bytes;
  }
  if (left != 0) pieces[count++] = {static_cast<uint8_t*>(data) + data_bytes - left, left};
  return count;
}

PipeStep outcome(ssize_t moved, size_t& left) noexcept {
  if (moved > 0) {
    left -= static_cast<size_t>(moved);
    return PipeStep::kMoved;
  }
  if (moved < 0 && (errno == EAGAIN || errno == EINTR)) return PipeStep::kBlocked;
  return PipeStep::kLost;
}

}  // namespace

PipeStep PipeSend::step() noexcept {
  if (done()) return PipeStep::kBlocked;
  iovec pieces[2];
  msghdr message = {};
  message.msg_iov = pieces;
  message.msg_iovlen = rest(prefix_, const_cast<uint8_t*>(data_.data()), data_.size(), left_, pieces);
  return outcome(::sendmsg(fd_, &message, MSG_DONTWAIT | MSG_NOSIGNAL), left_);
}

PipeStep PipeReceive::step() noexcept {
  if (done()) return PipeStep::kBlocked;
  iovec pieces[2];
  msghdr message = {};
  message.msg_iov = pieces;
  message.msg_iovlen = rest(prefix_, data_.data(), data_.size(), left_, pieces);
  return outcome(::recvmsg(fd_, &message, MSG_DONTWAIT), left_);
}

}  // namespace towline::collectives
