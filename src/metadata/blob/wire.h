// Metadata blobs as bytes. Little-endian; see README.md for the whole.
//
//   header   u32 magic, u32 bytes of the whole blob, u8 major, u8 minor, u16 flags
//   section  u16 id, u16 flags, u32 bytes, payload             any number, ids rising
//   trailer  u32 CRC-32C of everything before it
//
// Magic, length and trailer are where they are in every version. A new minor version adds sections, or fields
// at the end of a section; older readers skip them, unless the section says kMustUnderstand.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/wire.h"

namespace towline::metadata::wire {

inline constexpr uint32_t kMagic = 0x4d4c5754;  // "TWLM"
inline constexpr uint8_t kMajor = 1;
inline constexpr uint8_t kMinor = 1;
inline constexpr std::size_t kHeaderBytes = 12;
inline constexpr std::size_t kSectionHeaderBytes = 8;
inline constexpr std::size_t kTrailerBytes = 4;

enum BlobFlags : uint16_t {
  kPartial = 1,
};

enum SectionFlags : uint16_t {
  kMustUnderstand = 1,
};

enum class Section : uint16_t {
  kIdentity = 1,
  kListen = 2,
  kBackends = 3,
  kRegions = 4,
  kNames = 5,  // since 1.1
};

// The version of the encoding of a layout. A reader that does not know it takes the region's name alone.
inline constexpr uint8_t kLayoutVersion = 1;
inline constexpr std::size_t kMaxLayoutBytes = 256;  // of any version

// Fewest bytes of one region: eight fields and the number of tokens, one byte each.
inline constexpr std::size_t kLeastRegionBytes = 9;
// Fewest bytes of one name: the region's index, a name of one byte, no layout.
inline constexpr std::size_t kLeastNameBytes = 6;

// Integers of one to ten bytes, seven bits a byte, lowest first.
inline void put_varint(WireWriter& writer, uint64_t value) {
  for (; value >= 0x80; value >>= 7) writer.u8(static_cast<uint8_t>(value | 0x80));
  writer.u8(static_cast<uint8_t>(value));
}

// Fails the reader on a value above `most` and on an encoding longer than ten bytes.
inline uint64_t get_varint(WireReader& reader, uint64_t most = UINT64_MAX) noexcept {
  uint64_t value = 0;
  for (unsigned shift = 0; shift < 70; shift += 7) {
    const uint8_t byte = reader.u8();
    if (shift == 63 && byte > 1) break;
    value |= uint64_t{byte & 0x7fu} << shift;
    if ((byte & 0x80) == 0) {
      if (value > most) reader.fail();
      return reader.ok() ? value : 0;
    }
  }
  reader.fail();
  return 0;
}

// Small differences of either sign become small numbers. Wraps around, so that any two values have a
// difference.
constexpr uint64_t zigzag(uint64_t difference) noexcept {
  return (difference << 1) ^ (0 - (difference >> 63));
}
constexpr uint64_t unzigzag(uint64_t value) noexcept { return (value >> 1) ^ (0 - (value & 1)); }

}  // namespace towline::metadata::wire
