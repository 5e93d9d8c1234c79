#include "collectives/pipe.h"

#include <sys/uio.h>

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

PipeStep outcome(const StreamResult& result, size_t& left) noexcept {
  left -= result.bytes;
  return result.moved() ? PipeStep::kMoved : result.blocked() ? PipeStep::kBlocked : PipeStep::kLost;
}

}  // namespace

PipeStep PipeSend::step() noexcept {
  if (done()) return PipeStep::kBlocked;
  iovec pieces[2];
  const size_t count = rest(prefix_, const_cast<uint8_t*>(data_.data()), data_.size(), left_, pieces);
  return outcome(stream_->write({pieces, count}), left_);
}

PipeStep PipeReceive::step() noexcept {
  if (done()) return PipeStep::kBlocked;
  iovec pieces[2];
  const size_t count = rest(prefix_, data_.data(), data_.size(), left_, pieces);
  return outcome(stream_->read({pieces, count}), left_);
}

}  // namespace towline::collectives
