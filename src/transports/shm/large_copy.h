// Copies of plans so large that neither side would find their bytes in a cache afterwards. Whether stores
// past the caches are quicker than ordinary ones there, and which of them, differs by more than a factor of
// two among processors and among piece sizes, in either direction. So it is found out by timing slices.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/copy/quicker_way.h"
#include "towline/plugin/cursor.hpp"

namespace towline::shm {

// For one connection's worker; one thread at a time.
class LargeCopy {
 public:
  // Whether a plan of so many bytes, in pieces of so many, is one.
  [[nodiscard]] static bool is_large(uint64_t bytes, uint64_t piece_bytes) noexcept {
    return bytes >= kLargeBytes && piece_bytes >= kShortPieceBytes;
  }

  // Copies up to max_bytes more of a plan that is_large, in pieces of piece_bytes, whose regions are all
  // mapped; deltas as for DirectCopy.
  void step(plugin::Cursor& cursor, uint64_t piece_bytes, const uint64_t* deltas, uint32_t op,
            uint64_t max_bytes) noexcept;

 private:
  static constexpr uint64_t kLargeBytes = 32u << 20;
  static constexpr uint64_t kShortPieceBytes = 32u << 10;
  static constexpr uint64_t kLongPieceBytes = 512u << 10;

  // Begins with stores past the caches, line by line.
  struct Choice {
    QuickerWay<1, 8> past_caches;  // rather than ordinary stores
    QuickerWay<1, 8> in_lines;     // rather than in pages, of those past the caches
  };
  std::array<Choice, 2> choices_;  // for short pieces and for long ones
};

}  // namespace towline::shm
