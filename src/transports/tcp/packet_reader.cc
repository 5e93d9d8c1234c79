#include "transports/tcp/packet_reader.h"

#include <algorithm>
#include <cstring>

namespace towline::tcp {

PacketReader::State PacketReader::receive(Stream& stream) noexcept {
  while (have_ < want_) {
    const StreamResult got = stream.read(bytes_.data() + have_, want_ - have_);
    if (got.blocked()) return State::kMore;
    if (got.over()) {
      error_ = got.error;
      return State::kClosed;
    }
    const bool in_prefix = have_ < kPrefixBytes;
    have_ += got.bytes;
    if (std::memcmp(bytes_.data(), &magic_, std::min(have_, sizeof magic_)) != 0) return State::kGarbage;
    if (!in_prefix || have_ < kPrefixBytes) continue;
    uint16_t bytes = 0;
    std::memcpy(&bytes, bytes_.data() + 6, sizeof bytes);
    if (bytes < kLeastPacketBytes || bytes > bytes_.size()) return State::kGarbage;
    want_ = bytes;
  }
  return State::kWhole;
}

}  // namespace towline::tcp
