// The handshake of one socket; frames (framing/wire.h) follow it. Little-endian.
//
//   packet = u32 magic, u8 major, u8 minor, u16 bytes of the whole packet, fields, u32 CRC-32C of everything
//   before
//
// The connector sends a hello, the acceptor answers with a reply, and neither sends frames before its own
// part is done, so each is read to its last byte and no further. Lane 0 makes the connection; once it is up,
// more sockets may join it by its id. A later minor version adds fields before the checksum, which an older
// one leaves out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/id.h"
#include "framing/wire.h"
#include "towline/plugin/v1.h"

namespace towline::tcp {

inline constexpr uint32_t kHelloMagic = 0x48545754;  // "TWTH"
inline constexpr uint32_t kReplyMagic = 0x52545754;  // "TWTR"
inline constexpr uint8_t kMajor = 1;
inline constexpr uint8_t kMinor = 1;  // 1: features
inline constexpr std::size_t kPrefixBytes = 8;
inline constexpr std::size_t kChecksumBytes = 4;
inline constexpr std::size_t kLeastPacketBytes = kPrefixBytes + kChecksumBytes;
inline constexpr std::size_t kMaxPacketBytes = 1024;
inline constexpr std::size_t kMaxReplyText = 512;
inline constexpr std::size_t kMaxNameBytes = 255;
inline constexpr uint16_t kMaxLanes = 64;
inline constexpr uint16_t kExpressLane = kMaxLanes - 1;  // its number, between ends that know of it
inline constexpr std::size_t kMaxAddressBytes = 1024;    // of a backend, in the metadata

// From the connector. `self.name` is not used: the name is beside it.
struct Hello {
  Id target;                // the incarnation it wants to reach
  std::string target_name;  // how it knows that agent; empty: an older connector
  Id connection;            // random: what lanes are joined by
  uint16_t lane = 0;
  uint32_t worker = 0;  // of the acceptor, modulo the number it has
  towline_identity self = plugin::sized<towline_identity>();
  std::string name;
  uint32_t features = framing::kFeatures;  // of the sender (framing/wire.h); 0: an older one

  // `self` with the name in it, valid as long as this.
  [[nodiscard]] towline_identity identity() const noexcept;
};

// From the acceptor. Nobody learns from a refusal which incarnation is here: naming it is what lets in.
struct Reply {
  int32_t status = 0;  // TOWLINE_OK; TOWLINE_PEER_RESTARTED: an agent of that name, of another incarnation;
                       // TOWLINE_NOT_FOUND: no such agent or connection; or why else not
  Id incarnation;      // TOWLINE_OK: who is here
  std::string name;    // likewise
  std::string text;    // for people, when status is an error
  uint32_t features = framing::kFeatures;  // as in Hello
};

std::vector<uint8_t> pack(const Hello& hello);
std::vector<uint8_t> pack(const Reply& reply);

// Null when good, else what is wrong with it, for people. `packet` is whole.
[[nodiscard]] const char* unpack(std::span<const uint8_t> packet, Hello& hello);
[[nodiscard]] const char* unpack(std::span<const uint8_t> packet, Reply& reply);

// A backend's address in the metadata: u8 version 1, then the endpoints as counted texts, best first. At most
// kMaxAddressBytes: the last ones are left out if necessary.
std::vector<uint8_t> pack_address(std::span<const std::string> endpoints);
[[nodiscard]] const char* unpack_address(std::span<const uint8_t> address,
                                         std::vector<std::string>& endpoints);

// Goes with a region of GPU memory in the metadata, to say that its agent can land it. u8 version 1, u32 bytes; a
// later version may say more behind.
struct LandingToken {
  uint32_t most_frame_bytes = 0;  // payload of a frame into that region at most
};
std::vector<uint8_t> pack(const LandingToken& token);
[[nodiscard]] const char* unpack(std::span<const uint8_t> bytes, LandingToken& token);

}  // namespace towline::tcp
