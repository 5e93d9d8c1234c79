// Bytes that tell where they belong.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace towline::support {

// Every byte belongs to its (seed, offset), so that a misplaced or stale one shows.
// Sanitizers watch every single byte of a loop: these work out a piece unwatched, and leave the memory in question to
// memcpy and memcmp, which are watched as a whole.
inline constexpr uint64_t kStampPiece = 4096;
[[gnu::no_sanitize("thread", "address", "undefined"), gnu::optimize("O2")]] inline void work_out_stamp(
    std::byte (&piece)[kStampPiece], uint64_t bytes, uint64_t seed, uint64_t offset) {
  uint64_t word = 0;
  for (uint64_t i = 0; i < bytes; ++i) {
    const uint64_t at = offset + i;
    if (i == 0 || at % 8 == 0) word = (seed * 0x9e3779b97f4a7c15ULL) ^ ((at / 8) * 0xbf58476d1ce4e5b9ULL);
    piece[i] = static_cast<std::byte>(word >> (at % 8 * 8));
  }
}

inline void stamp_bytes(std::byte* data, uint64_t bytes, uint64_t seed, uint64_t offset = 0) {
  std::byte piece[kStampPiece];
  for (uint64_t at = 0; at < bytes; at += kStampPiece) {
    const uint64_t count = std::min(kStampPiece, bytes - at);
    work_out_stamp(piece, count, seed, offset + at);
    std::memcpy(data + at, piece, count);
  }
}
// The first offset that is not as stamped, or `bytes`.
inline uint64_t first_difference(const std::byte* data, uint64_t bytes, uint64_t seed, uint64_t offset = 0) {
  std::byte piece[kStampPiece];
  for (uint64_t at = 0; at < bytes; at += kStampPiece) {
    const uint64_t count = std::min(kStampPiece, bytes - at);
    work_out_stamp(piece, count, seed, offset + at);
    if (std::memcmp(data + at, piece, count) == 0) continue;
    uint64_t i = 0;
    while (data[at + i] == piece[i]) ++i;
    return at + i;
  }
  return bytes;
}

// Whether every byte is `value`.
inline bool all_are(const std::byte* data, uint64_t bytes, std::byte value) {
  return bytes == 0 || (data[0] == value && std::memcmp(data, data + 1, bytes - 1) == 0);
}

}  // namespace towline::support
