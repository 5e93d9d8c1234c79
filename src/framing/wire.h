// The framed engine's wire format, version 2. Little-endian throughout.
//
//   frame = header (64 bytes) + segment_count x segment (24 bytes) + padding_bytes + payload_bytes
//           + message_bytes
//
//   type     segments        payload   message   part         offset, extent
//   WRITE    the target      the data  optional  initiator's  of the data in the plan, 0
//   READ     the source      -         -         initiator's  of the data in the plan, its bytes
//   DATA     -               the data  -         the READ's   of the data in the plan, 0
//   ACK      -               -         -         0            0, 0
//   NACK     -               -         -         refused      of the data refused, its bytes
//   MESSAGE  -               -         required  0            0, 0
//   BYE      -               -         -         0            0, 0
//
// `sequence` counts all frames of a lane and direction from 0. Every header's `ack` says how many frames of
// the other direction of its lane have been handled, in order: their data is placed and visible, or refused
// by an earlier NACK. READs are answered on their lane in order of arrival, by DATA with consecutive offsets,
// or a NACK for all the rest of one.
//
// If a lane has a payload flow (payload_flow.h), a frame that says so has its payload there, without padding.
//
// A WRITE may say that the header and segments of another one follow at once. The payloads then follow the last of
// these and its padding, in the order of their headers, and the last one's message follows them. Such frames are not
// chained and have no checksum of their payload; the sums of their segments and payloads keep a frame's limits.
//
// Instead of an ACK, a lane may carry a count beside its bytes (lane.h); it is valid once everything written
// before it has been handled.
//
// Versions: both ends of a lane use the same one (the transports' handshakes carry it); a header of another
// version is refused. Abilities that came after version 2 are features: each end tells its own in the transport's
// handshake, and is never sent what it did not name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "base/copy/crc32c.h"
#include "base/wire.h"
#include "towline/plugin/v1.h"
#include "towline/towline.h"

namespace towline::framing {

inline constexpr uint16_t kMagic = 0x5754;  // "TW"
inline constexpr uint8_t kWireVersion = 2;

enum : uint32_t {              // what an end understands
  kFeatureUrgent = 1u << 0,    // kFlagUrgent
  kFeatureApart = 1u << 1,     // kFlagApart
  kFeatureExpress = 1u << 2,   // one more lane for urgent parts alone
  kFeatureTogether = 1u << 3,  // kFlagTogether
};
inline constexpr uint32_t kFeatures =
    kFeatureUrgent | kFeatureApart | kFeatureExpress | kFeatureTogether;  // of this release

// Limits that both ends hold each other to.
inline constexpr uint32_t kMaxSegments = 1000;  // of a frame; with header and message within one writev
inline constexpr uint32_t kMaxPayloadBytes = 16u << 20;  // of a frame
inline constexpr uint32_t kMaxPaddingBytes = 4096;       // before a WRITE's or DATA's payload, of any content
inline constexpr uint64_t kMaxReadBytes = 1ull << 30;    // of a read request
inline constexpr uint32_t kMaxMessageBytes = TOWLINE_MAX_MESSAGE_BYTES;
inline constexpr uint32_t kReadCredits = 64;            // read requests outstanding on a connection
inline constexpr uint32_t kMostTogether = 32;           // frames whose headers precede all their payloads
inline constexpr uint32_t kMostUncountedFrames = 1024;  // WRITE frames on a lane that are not counted yet

enum class FrameType : uint8_t {
  kWrite = 1,
  kRead = 2,
  kData = 3,
  kAck = 4,
  kNack = 5,
  kMessage = 6,
  kBye = 7,
};

enum : uint16_t {
  kFlagChained =
      1,  // WRITE: one of several frames of a part that all use this lane, with no other such part between
  kFlagChecksum = 2,   // payload_crc holds the CRC-32C of payload and message
  kFlagUrgent = 4,     // READ: to be answered before requests without it, as far as the owner likes;
                       // WRITE: of an urgent part
  kFlagApart = 8,      // WRITE, DATA: the payload comes on the lane's payload flow; READ: its answers may
  kFlagTogether = 16,  // WRITE: another one's header follows, and the payload after the last such header
};

// As it lies on the wire. Decoded values are in a private copy, checked.
struct FrameHeader {
  uint16_t magic = kMagic;
  uint8_t version = kWireVersion;
  FrameType type{};
  uint16_t flags = 0;
  uint16_t segment_count = 0;
  uint32_t sequence = 0;
  uint32_t ack = 0;
  uint32_t payload_bytes = 0;
  uint32_t message_bytes = 0;
  uint64_t part = 0;
  uint64_t offset = 0;
  uint64_t extent = 0;
  int32_t status = 0;  // NACK: why
  uint32_t payload_crc = 0;
  uint32_t padding_bytes = 0;
  uint32_t header_crc = 0;  // CRC-32C of the 60 bytes before, then of the segments
};
static_assert(sizeof(FrameHeader) == 64 && offsetof(FrameHeader, part) == 24 &&
              offsetof(FrameHeader, status) == 48 && offsetof(FrameHeader, header_crc) == 60);

struct WireSegment {
  uint64_t key;
  uint64_t address;
  uint64_t length;
};
static_assert(sizeof(WireSegment) == 24);

inline constexpr std::size_t kHeaderBytes = sizeof(FrameHeader);
inline constexpr std::size_t kMaxPreambleBytes =
    kHeaderBytes + kMaxSegments * sizeof(WireSegment) + kMaxPaddingBytes;

inline std::span<const uint8_t> bytes_of(const void* data, std::size_t bytes) noexcept {
  return {static_cast<const uint8_t*>(data), bytes};
}

inline uint32_t header_checksum(const uint8_t* header, std::size_t segment_count) noexcept {
  const uint32_t fixed = crc32c({header, offsetof(FrameHeader, header_crc)});
  return segment_count == 0 ? fixed
                            : crc32c({header + kHeaderBytes, segment_count * sizeof(WireSegment)}, fixed);
}

// Writes the header before the header.segment_count segments that already lie at out + kHeaderBytes.
inline void encode_header(FrameHeader header, uint8_t* out) noexcept {
  std::memcpy(out, &header, kHeaderBytes);
  const uint32_t checksum = header_checksum(out, header.segment_count);
  std::memcpy(out + offsetof(FrameHeader, header_crc), &checksum, sizeof checksum);
}

inline std::size_t preamble_bytes(const FrameHeader& header) noexcept {
  return kHeaderBytes + header.segment_count * sizeof(WireSegment) + header.padding_bytes;
}

inline WireSegment segment_at(const uint8_t* preamble, std::size_t index) noexcept {
  WireSegment segment;
  std::memcpy(&segment, preamble + kHeaderBytes + index * sizeof segment, sizeof segment);
  return segment;
}

// Copies the first kHeaderBytes of `data` and checks all that can be checked before the segments are there,
// so that preamble_bytes() can be trusted to be small. Null when good, else what is wrong, for people.
[[nodiscard]] const char* decode_header(const uint8_t* data, FrameHeader& header) noexcept;

// With the whole preamble in private memory: its checksum, then the segments against the header.
[[nodiscard]] const char* check_preamble(const uint8_t* data, const FrameHeader& header) noexcept;

}  // namespace towline::framing
