#include "fabric/framed_stream.h"

#include <cstring>
#include <new>

namespace towline::fabric {

bool FramedStream::append(std::span<const uint8_t> frame) noexcept {
  const auto length = static_cast<uint32_t>(frame.size());
  if (sent_ > unsent()) {  // a reader that is always behind must not make it grow for ever
    out_.erase(out_.begin(), out_.begin() + static_cast<std::ptrdiff_t>(sent_));
    sent_ = 0;
  }
  try {
    out_.reserve(out_.size() + sizeof length + frame.size());
  } catch (const std::bad_alloc&) {
    return false;
  }
  const auto* bytes = reinterpret_cast<const uint8_t*>(&length);
  out_.insert(out_.end(), bytes, bytes + sizeof length);
  out_.insert(out_.end(), frame.begin(), frame.end());
  return true;
}

StreamResult FramedStream::flush() noexcept {
  while (unsent() != 0) {
    const StreamResult sent = stream_.write(out_.data() + sent_, unsent());
    if (!sent.moved()) return sent;
    sent_ += sent.bytes;
  }
  out_.clear();
  sent_ = 0;
  return {};
}

StreamResult FramedStream::fill() noexcept {
  uint8_t buffer[kMostRead];
  const StreamResult got = stream_.read(buffer, sizeof buffer);
  if (!got.moved()) return got;
  in_.erase(in_.begin(), in_.begin() + static_cast<std::ptrdiff_t>(taken_));
  taken_ = 0;
  try {
    in_.insert(in_.end(), buffer, buffer + got.bytes);
  } catch (const std::bad_alloc&) {
    return {0, StreamResult::Kind::kFailed, ENOMEM};
  }
  return got;
}

FramedStream::Next FramedStream::next(std::size_t most, std::span<const uint8_t>& frame) noexcept {
  uint32_t length = 0;
  const std::size_t held = in_.size() - taken_;
  if (held < sizeof length) return Next::kNone;
  std::memcpy(&length, in_.data() + taken_, sizeof length);
  if (length > most) return Next::kTooLong;
  if (held - sizeof length < length) return Next::kNone;
  frame = {in_.data() + taken_ + sizeof length, length};
  taken_ += sizeof length + length;
  return Next::kFrame;
}

}  // namespace towline::fabric
