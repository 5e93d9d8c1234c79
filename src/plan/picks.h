// What was picked from a list: an array of indices or a range, checked.
#pragma once

#include <towline/towline.h>

#include <cstdint>
#include <cstring>
#include <memory>

namespace towline {

// One side's picks, without copying indices.
struct Picks {
  const void* indices = nullptr;  // null: the range
  uint32_t index_bytes = 0;
  uint64_t start = 0;
  uint64_t step = 1;
  uint64_t count = 0;

  [[nodiscard]] bool is_range() const noexcept { return indices == nullptr; }
  [[nodiscard]] uint64_t at(uint64_t position) const noexcept {
    if (indices == nullptr) return start + position * step;
    if (index_bytes == 4) return load<uint32_t>(position);
    return load<uint64_t>(position);
  }
  template <class Index>
  [[nodiscard]] uint64_t load(uint64_t position) const noexcept {
    Index index = 0;
    std::memcpy(&index, static_cast<const uint8_t*>(indices) + position * sizeof(Index), sizeof(Index));
    return index;
  }
};

// Null: all `blocks`. An array whose indices ascend by one constant step becomes a range. Throws Error for
// what is wrong whatever the list (kInvalidArgument, kLimitExceeded) and for a range that leaves the list
// (kOutOfRange). Indices of an array that stays one are not looked at. `side` begins messages: "local" or
// "remote".
Picks make_picks(const towline_picks_t* picks, uint64_t blocks, const char* side);

// Throws Error(kOutOfRange) naming the first index that is not below `blocks`, if there is one.
void check_range(const Picks& picks, uint64_t blocks, const char* side);

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
