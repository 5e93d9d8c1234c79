#include "framing/wire.h"
#include "base/sync/wake_path.h"

namespace towline::framing {
namespace {

constexpr uint16_t allowed_flags(FrameType type) noexcept {
  switch (type) {
    case FrameType::kWrite:
      return kFlagChained | kFlagChecksum | kFlagUrgent | kFlagApart | kFlagTogether;
    case FrameType::kRead:
      return kFlagUrgent | kFlagApart;
    case FrameType::kData:
      return kFlagChecksum | kFlagApart;
    case FrameType::kMessage:
      return kFlagChecksum;
    default:
      return 0;
  }
}

// The fields a type leaves unused are zero, so that a later version can give them a meaning.
const char* check_fields(const FrameHeader& h) noexcept {
  const bool placed = h.type == FrameType::kWrite || h.type == FrameType::kData;
  const bool has_segments = h.type == FrameType::kWrite || h.type == FrameType::kRead;
  const bool has_extent = h.type == FrameType::kRead || h.type == FrameType::kNack;
  const bool has_message = h.type == FrameType::kMessage;
  if (has_segments != (h.segment_count != 0)) return "segment count does not fit the frame's type";
  if (placed != (h.payload_bytes != 0)) return "payload does not fit the frame's type";
  if (!placed && h.padding_bytes != 0) return "padding in a frame without payload";
  if (has_message != (h.message_bytes != 0) && h.type != FrameType::kWrite)
    return "message does not fit the frame's type";
  if (has_extent != (h.extent != 0)) return "extent does not fit the frame's type";
  if (!placed && !has_extent && (h.part != 0 || h.offset != 0)) return "part in a frame that has none";
  if ((h.type == FrameType::kNack) != (h.status < 0) || h.status > 0)
    return "status does not fit the frame's type";
  if ((h.flags & kFlagChecksum) == 0 && h.payload_crc != 0) return "checksum without its flag";
  if (placed && (h.flags & kFlagApart) != 0 && (h.padding_bytes != 0 || (h.flags & kFlagChecksum) != 0))
    return "padding or a checksum of payload that goes apart";
  if ((h.flags & kFlagTogether) != 0 && (h.padding_bytes != 0 || h.message_bytes != 0))
    return "padding or a message of a frame that others follow";
  const uint64_t bytes = has_extent ? h.extent : h.payload_bytes;
  if (h.offset > UINT64_MAX - bytes) return "offset overflows";
  return nullptr;
}

}  // namespace

TOWLINE_WAKE_PATH const char* decode_header(const uint8_t* data, FrameHeader& header) noexcept {
  std::memcpy(&header, data, kHeaderBytes);
  if (header.magic != kMagic) return "wrong magic";
  if (header.version != kWireVersion) return "unknown wire version";
  if (header.type < FrameType::kWrite || header.type > FrameType::kBye) return "unknown frame type";
  if ((header.flags & ~allowed_flags(header.type)) != 0) return "unknown flags";
  if (header.segment_count > kMaxSegments) return "too many segments";
  if (header.padding_bytes > kMaxPaddingBytes) return "too much padding";
  if (header.payload_bytes > kMaxPayloadBytes) return "payload too large";
  if (header.message_bytes > kMaxMessageBytes) return "message too large";
  if (header.type == FrameType::kRead && header.extent > kMaxReadBytes) return "read request too large";
  return check_fields(header);
}

TOWLINE_WAKE_PATH const char* check_preamble(const uint8_t* data, const FrameHeader& header) noexcept {
  if (header_checksum(data, header.segment_count) != header.header_crc)
    return "header checksum does not match";
  if (header.segment_count == 0) return nullptr;
  const uint64_t expected = header.type == FrameType::kRead ? header.extent : header.payload_bytes;
  uint64_t sum = 0;
  for (std::size_t i = 0; i < header.segment_count; ++i) {
    const WireSegment segment = segment_at(data, i);
    if (segment.length == 0) return "empty segment";
    if (segment.length > expected - sum) return "segments longer than the frame says";
    if (segment.address > UINT64_MAX - segment.length) return "segment wraps around";
    sum += segment.length;
  }
  return sum == expected ? nullptr : "segments shorter than the frame says";
}

}  // namespace towline::framing
