// The blocks picked from a list: an array of indices or a range, checked.
#pragma once

#include <towline/towline.h>

#include <cstdint>
#include <memory>

namespace towline {

// One side's picks. Every index is below the number of the list's blocks.
struct Picks {
  std::unique_ptr<uint32_t[]> indices;  // null: the range
  uint64_t start = 0;
  uint64_t step = 1;
  uint64_t count = 0;

  [[nodiscard]] bool is_range() const noexcept { return indices == nullptr; }
  [[nodiscard]] uint64_t at(uint64_t position) const noexcept {
    return indices == nullptr ? start + position * step : indices[position];
  }
};

// Null: all `blocks`. An array whose indices ascend by one constant step becomes a range; others are copied,
// since the application may write to its array meanwhile: only what was read and checked here may be used.
// Throws Error naming the value that is wrong (kInvalidArgument, kLimitExceeded, and kOutOfRange for what
// leaves the list). `side` begins messages: "local" or "remote".
Picks make_picks(const towline_picks_t* picks, uint64_t blocks, const char* side);

// Notices indices below a bound that come twice.
class SeenIndices {
 public:
  // For `count` indices below `blocks`. Memory: a bit a block where that is at most 8 bytes an index, else a
  // hash table.
  SeenIndices(uint64_t count, uint64_t blocks);
  // False when it was seen before.
  bool add(uint32_t index) noexcept {
    if (bits_ != nullptr) {
      uint64_t& word = bits_.get()[index / 64];
      const uint64_t bit = uint64_t{1} << (index % 64);
      const bool fresh = (word & bit) == 0;
      word |= bit;
      return fresh;
    }
    return add_hashed(index);
  }

 private:
  struct Free {
    void operator()(void* memory) const noexcept;
  };
  bool add_hashed(uint32_t index) noexcept;

  std::unique_ptr<uint64_t[], Free> bits_;
  std::unique_ptr<uint64_t[], Free> slots_;  // index + 1; 0: empty
  uint32_t slot_shift_ = 0;
};

// Throws Error(kInvalidArgument) naming the two positions of the index at `position`, which came before.
[[noreturn]] void fail_duplicate(const Picks& picks, uint64_t position, const char* side);

}  // namespace towline
