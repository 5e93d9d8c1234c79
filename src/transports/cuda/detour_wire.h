// The messages of two ends for copies through host memory (detour.h), as messages between the core's own on
// the connection.
//
//   asker   MOVE {number, direction, pool, offset, stretches of the owner's regions}   ->
//   owner                                                                              <-  MOVED {number,
//   status}
//
// Little-endian; each begins with the mark, a version and its type. A later version may only append fields.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "towline/status.h"

namespace towline::cuda {

// No message of the core begins with this.
inline constexpr std::array<uint8_t, 16> kDetourMark = {0xc5, 0xd1, 0x4e, 0x9a, 0x07, 0x62, 0xb8, 0xf3,
                                                        0x71, 0x2c, 0xe6, 0x5d, 0x98, 0x0b, 0xaf, 0x34};

// Host memory that the asker shares, by the name under which memory_service.h gives it out.
struct PoolName {
  uint64_t key = 0;
  uint64_t address = 0;  // at the asker
  uint64_t bytes = 0;
  bool operator==(const PoolName&) const = default;
};

struct Stretch {
  uint64_t key;  // of the owner's region
  uint64_t address;
  uint64_t bytes;
};

struct Move {
  uint64_t number = 0;  // the asker's
  bool to_owner = false;
  PoolName pool;
  uint64_t offset = 0;  // in the pool: the stretches lie there one behind the other
};

struct Moved {
  uint64_t number = 0;
  Status status = Status::kOk;
  int32_t code = 0;  // the GPU driver's
  std::string text;  // why not
};

[[nodiscard]] bool is_detour_message(std::span<const uint8_t> message) noexcept;
[[nodiscard]] bool is_move(std::span<const uint8_t> message) noexcept;

// Replaces the contents of `out`.
void encode(const Move& move, std::span<const Stretch> stretches, std::vector<uint8_t>& out);
void encode(const Moved& moved, std::vector<uint8_t>& out);
// False: it is invalid. Each stretch has at least one byte, and all together at most kDetourSlotBytes.
[[nodiscard]] bool decode(std::span<const uint8_t> message, Move& move, std::vector<Stretch>& stretches);
[[nodiscard]] bool decode(std::span<const uint8_t> message, Moved& moved);

}  // namespace towline::cuda
