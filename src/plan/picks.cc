#include "plan/picks.h"

#include <fmt/format.h>

#include <bit>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>
#include <type_traits>
#include <utility>

#include "base/error.h"
#include "plan/plan.h"

namespace towline {

namespace {

constexpr uint64_t kBitsPerIndex = 64;
constexpr uint64_t kSignBit = uint64_t{1} << 31;
constexpr uint64_t kSmallListBlocks = uint64_t{1} << 21;

uint64_t* zeroed(uint64_t words) {
  auto* const memory = static_cast<uint64_t*>(std::calloc(words, sizeof(uint64_t)));
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

void check_array(const towline_picks_t& given, const char* side) {
  if (given.index_bytes != 4 && given.index_bytes != 8)
    fail(Status::kInvalidArgument, "the {} indices have {} bytes each: only 4 and 8 are possible", side,
         given.index_bytes);
  if (given.count > kMaxPickedBlocks)
    fail(Status::kLimitExceeded,
         "{} {} blocks are picked by index: {} are the most; pick regular ones as a range, or make several "
         "transfers",
         given.count, side, kMaxPickedBlocks);
}

void check_range(const towline_picks_t& given, uint64_t blocks, const char* side) {
  if (given.count > kMaxListBlocks)
    fail(Status::kLimitExceeded, "{} {} blocks are picked: {} are the most", given.count, side,
         kMaxListBlocks);
  if (given.start >= blocks)
    fail(Status::kOutOfRange, "the {} range begins at block {}, the list has {}", side, given.start, blocks);
  if (given.step != 0 && given.count > 1 && (blocks - 1 - given.start) / given.step < given.count - 1)
    fail(Status::kOutOfRange,
         "the {} range of {} blocks from {} in steps of {} leaves the list, which has {}", side, given.count,
         given.start, given.step, blocks);
}

// Indices as the application gives them, each call one read of memory that others may write to.
template <class Index>
class GivenIndices {
 public:
  explicit GivenIndices(const void* first) noexcept : first_(static_cast<const uint8_t*>(first)) {}
  Index load_given(uint64_t position) const noexcept {
    Index index = 0;
    std::memcpy(&index, first_ + position * sizeof(Index), sizeof(Index));
    return index;
  }
  void load_all_given(Index* to, uint64_t count) const noexcept {
    std::memcpy(to, first_, count * sizeof(Index));
  }

 private:
  const uint8_t* first_;
};

template <class Index>
[[noreturn]] void fail_outside(Index index, uint64_t position, uint64_t count, uint64_t blocks,
                               const char* side) {
  const auto value = static_cast<std::make_signed_t<Index>>(index);  // as meant: -1 rather than 2^64 - 1
  fail(Status::kOutOfRange, "{} index {} at position {} of {}: the list has {} blocks", side,
       value < 0 ? std::to_string(value) : std::to_string(index), position, count, blocks);
}

// The indices as a range, if they are one: `picks` gets its start and step.
template <class Index>
bool find_range(GivenIndices<Index> given, uint64_t blocks, Picks& picks) noexcept {
  const uint64_t start = given.load_given(0);
  if (start >= blocks) return false;
  uint64_t step = 1;
  if (picks.count > 1) {
    uint64_t last = given.load_given(1);
    step = last - start;
    if (step == 0 || step >= blocks) return false;
    for (uint64_t i = 2; i < picks.count; ++i) {
      const uint64_t index = given.load_given(i);
      if (index - last != step) return false;
      last = index;
    }
    if (last >= blocks) return false;
  }
  picks.start = start;
  picks.step = step;
  return true;
}

// Without a branch for each. `blocks` is at most kSignBit.
bool all_below(uint64_t blocks, const uint32_t* indices, uint64_t count) noexcept {
  constexpr uint64_t kAtOnce = 8;
  const auto last = static_cast<uint32_t>(blocks - 1);
  uint32_t signs = 0;  // set by an index above kSignBit, and by a difference below 0
  uint64_t i = 0;
  for (; i + kAtOnce <= count; i += kAtOnce)
    for (uint64_t j = 0; j < kAtOnce; ++j) signs |= indices[i + j] | (last - indices[i + j]);
  for (; i < count; ++i) signs |= indices[i] | (last - indices[i]);
  return signs < kSignBit;
}

template <class Index>
void take_indices(GivenIndices<Index> given, uint64_t blocks, Picks& picks, const char* side,
                  IndexMemory& memory) {
  if (find_range(given, blocks, picks)) return;
  uint32_t* const indices = memory.room_for(picks.count);
  picks.indices = indices;
  if constexpr (sizeof(Index) == sizeof(uint32_t)) {
    if (blocks <= kSignBit) {
      given.load_all_given(indices, picks.count);
      if (all_below(blocks, indices, picks.count)) return;
      given = GivenIndices<Index>(indices);  // as they were read
    }
  }
  for (uint64_t i = 0; i < picks.count; ++i) {
    const Index index = given.load_given(i);
    if (index >= blocks) [[unlikely]]
      fail_outside(index, i, picks.count, blocks, side);
    indices[i] = static_cast<uint32_t>(index);
  }
}

}  // namespace

Picks make_picks(const towline_picks_t* all_or_given, uint64_t blocks, const char* side,
                 IndexMemory& memory) {
  Picks picks;
  picks.count = blocks;
  if (all_or_given == nullptr) return picks;
  const towline_picks_t given = *all_or_given;
  picks.count = given.count;
  if (given.count == 0)
    fail(Status::kInvalidArgument, "no {} block is picked: a transfer needs at least one", side);
  if (given.indices == nullptr) {
    check_range(given, blocks, side);
    picks.start = given.start;
    picks.step = given.step;
    return picks;
  }
  check_array(given, side);
  if (given.index_bytes == 4)
    take_indices(GivenIndices<uint32_t>(given.indices), blocks, picks, side, memory);
  else
    take_indices(GivenIndices<uint64_t>(given.indices), blocks, picks, side, memory);
  return picks;
}

void SeenIndices::Free::operator()(void* memory) const noexcept { std::free(memory); }

void SeenIndices::begin(uint64_t count, uint64_t blocks) {
  const bool bits = blocks <= kSmallListBlocks || blocks / kBitsPerIndex <= count;
  const uint64_t words = bits ? blocks / 64 + 1 : std::bit_ceil(count * 2 + 2);
  slot_shift_ = bits ? 0 : 64 - static_cast<uint32_t>(std::countr_zero(words));
  if (words > capacity_) {
    words_.reset(zeroed(words));
    capacity_ = words;
  } else if (used_ != 0) {
    std::memset(words_.get(), 0, used_ * sizeof(uint64_t));
  }
  used_ = words;
}

void SeenIndices::forget(const uint32_t* indices, uint64_t count) noexcept {
  if (slot_shift_ != 0 || count >= used_) return;  // quicker all at once
  for (uint64_t i = 0; i < count; ++i) words_.get()[indices[i] / 64] = 0;
  used_ = 0;
}

bool SeenIndices::add_hashed(uint32_t index) noexcept {
  const uint64_t wanted = uint64_t{index} + 1;
  const uint64_t mask = UINT64_MAX >> slot_shift_;
  for (uint64_t slot = (wanted * 0x9e3779b97f4a7c15ULL) >> slot_shift_;; slot = (slot + 1) & mask) {
    if (words_.get()[slot] == wanted) return false;
    if (words_.get()[slot] == 0) {
      words_.get()[slot] = wanted;
      return true;
    }
  }
}

void fail_duplicate(const Picks& picks, uint64_t position, const char* side) {
  const uint64_t index = picks.at(position);
  uint64_t first = 0;
  while (picks.at(first) != index) ++first;
  fail(Status::kInvalidArgument,
       "{} block {} is picked twice, at positions {} and {}, but bytes land there: each block may be picked "
       "once",
       side, index, first, position);
}

}  // namespace towline
