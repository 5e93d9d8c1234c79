// The blocks picked from a list: an array of indices or a range, checked.
#pragma once

#include <towline/towline.h>

#include <cstdint>
#include <memory>

namespace towline {

// Memory for indices that is kept from one use to the next.
class IndexMemory {
 public:
  // Makes room for so many; the old content is lost.
  uint32_t* room_for(uint64_t count) {
    if (count > capacity_) {
      memory_ = std::make_unique_for_overwrite<uint32_t[]>(count);
      capacity_ = count;
    }
    return memory_.get();
  }

 private:
  std::unique_ptr<uint32_t[]> memory_;
  uint64_t capacity_ = 0;
};

// One side's picks. Every index is below the number of the list's blocks. They lie in the memory that it was made
// with.
struct Picks {
  const uint32_t* indices = nullptr;  // null: the range
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
// leaves the list). `side` names the list in messages: "'from'" or "'to'".
Picks make_picks(const towline_picks_t* picks, uint64_t blocks, const char* side, IndexMemory& memory);

// Notices indices below a bound that come twice. Its memory is kept from one use to the next.
class SeenIndices {
 public:
  // For `count` indices below `blocks`. Memory: a bit a block where that is at most 8 bytes an index, else a
  // hash table.
  void begin(uint64_t count, uint64_t blocks);
  // False when it was seen before.
  bool add(uint32_t index) noexcept {
    if (slot_shift_ == 0) {
      uint64_t& word = words_.get()[index / 64];
      const uint64_t bit = uint64_t{1} << (index % 64);
      const bool fresh = (word & bit) == 0;
      word |= bit;
      return fresh;
    }
    return add_hashed(index);
  }
  // Forgets these, which are all that were added; without it, the next begin() forgets all.
  void forget(const uint32_t* indices, uint64_t count) noexcept;

 private:
  struct Free {
    void operator()(void* memory) const noexcept;
  };
  bool add_hashed(uint32_t index) noexcept;

  std::unique_ptr<uint64_t[], Free> words_;  // bits, or index + 1 (0: empty)
  uint64_t capacity_ = 0;                    // words
  uint64_t used_ = 0;                        // words that may not be zero
  uint32_t slot_shift_ = 0;                  // 0: bits
};

// Throws Error(kInvalidArgument) naming the two positions of the index at `position`, which came before.
[[noreturn]] void fail_duplicate(const Picks& picks, uint64_t position, const char* side);

}  // namespace towline
