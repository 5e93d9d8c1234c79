// Bytes that tell where they belong.
#pragma once

#include <cstddef>
#include <cstdint>

namespace towline::support {

// The byte that belongs to this (seed, offset), so that a misplaced or stale byte shows.
inline std::byte byte_at(uint64_t seed, uint64_t offset) {
  const uint64_t word = (seed * 0x9e3779b97f4a7c15ULL) ^ ((offset / 8) * 0xbf58476d1ce4e5b9ULL);
  return static_cast<std::byte>(word >> (offset % 8 * 8));
}
inline void stamp_bytes(std::byte* data, uint64_t bytes, uint64_t seed, uint64_t offset = 0) {
  for (uint64_t i = 0; i < bytes; ++i) data[i] = byte_at(seed, offset + i);
}
// The first offset that is not as stamped, or `bytes`.
inline uint64_t first_difference(const std::byte* data, uint64_t bytes, uint64_t seed, uint64_t offset = 0) {
  for (uint64_t i = 0; i < bytes; ++i) {
    if (data[i] != byte_at(seed, offset + i)) return i;
  }
  return bytes;
}

}  // namespace towline::support
