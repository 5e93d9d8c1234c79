// The exchange on the wire: one message each way, client first, then both close. Little-endian.
//
//   u32 magic, u8 major, u8 minor, u16 flags 0, i32 status, u32 bytes, then so many bytes
//
// From the client: status 0 and its blob, which may be empty. From the server: status 0 and its blob, or a
// status below 0 and a text for people. The header is the same in every version, so that a refusal can be
// understood by an older client.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/wire.h"

namespace towline::metadata::wire {

inline constexpr uint32_t kExchangeMagic = 0x584c5754;  // "TWLX"
inline constexpr uint8_t kExchangeMajor = 1;
inline constexpr uint8_t kExchangeMinor = 0;
inline constexpr std::size_t kExchangeHeaderBytes = 16;
inline constexpr std::size_t kMaxRefusalBytes = 4096;

struct ExchangeHeader {
  uint8_t major = kExchangeMajor;
  uint8_t minor = kExchangeMinor;
  int32_t status = 0;
  uint32_t bytes = 0;
};

inline std::array<uint8_t, kExchangeHeaderBytes> pack(const ExchangeHeader& header) noexcept {
  std::array<uint8_t, kExchangeHeaderBytes> packed = {};
  WireWriter writer{std::span<uint8_t>(packed)};
  writer.u32(kExchangeMagic);
  writer.u8(header.major);
  writer.u8(header.minor);
  writer.u16(0);
  writer.i32(header.status);
  writer.u32(header.bytes);
  return packed;
}

// False when these are not the first bytes of an exchange.
inline bool unpack(std::span<const uint8_t> packed, ExchangeHeader& header) noexcept {
  WireReader reader(packed);
  const uint32_t magic = reader.u32();
  header.major = reader.u8();
  header.minor = reader.u8();
  reader.u16();
  header.status = reader.i32();
  header.bytes = reader.u32();
  return reader.ok() && magic == kExchangeMagic;
}

}  // namespace towline::metadata::wire
