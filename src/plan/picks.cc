#include "plan/picks.h"

#include <fmt/format.h>

#include <bit>
#include <cstdlib>
#include <new>
#include <string>

#include "base/error.h"
#include "plan/plan.h"

namespace towline {

namespace {

constexpr uint64_t kBitsPerIndex = 64;
constexpr uint64_t kSmallListBlocks = uint64_t{1} << 21;

// As the application meant it: -1 rather than 18446744073709551615.
std::string show_index(const Picks& picks, uint64_t position) {
  const uint64_t index = picks.at(position);
  const auto value = picks.index_bytes == 4 ? static_cast<int64_t>(static_cast<int32_t>(index))
                                            : static_cast<int64_t>(index);
  return value < 0 ? std::to_string(value) : std::to_string(index);
}

uint64_t* zeroed(uint64_t words) {
  auto* const memory = static_cast<uint64_t*>(std::calloc(words, sizeof(uint64_t)));
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

void check_limits(const Picks& picks, uint64_t blocks, const char* side) {
  if (picks.count == 0)
    fail(Status::kInvalidArgument, "no {} block is picked: a transfer needs at least one", side);
  if (!picks.is_range()) {
    if (picks.count > kMaxPickedBlocks)
      fail(Status::kLimitExceeded,
           "{} {} blocks are picked by index: {} are the most; pick regular ones as a range, or make several "
           "transfers",
           picks.count, side, kMaxPickedBlocks);
    return;
  }
  if (picks.count > kMaxListBlocks)
    fail(Status::kLimitExceeded, "{} {} blocks are picked: {} are the most", picks.count, side,
         kMaxListBlocks);
  if (picks.start >= blocks)
    fail(Status::kOutOfRange, "the {} range begins at block {}, the list has {}", side, picks.start, blocks);
  if (picks.step != 0 && picks.count > 1 && (blocks - 1 - picks.start) / picks.step < picks.count - 1)
    fail(Status::kOutOfRange,
         "the {} range of {} blocks from {} in steps of {} leaves the list, which has {}", side, picks.count,
         picks.start, picks.step, blocks);
}

// The indices as a range, if that is what they are.
template <class Index>
bool find_step(const Picks& picks, uint64_t blocks, uint64_t& step) noexcept {
  uint64_t last = picks.load<Index>(0);
  if (last >= blocks) return false;
  step = 1;
  if (picks.count == 1) return true;
  step = picks.load<Index>(1) - last;
  if (step == 0 || step >= blocks) return false;
  for (uint64_t i = 1; i < picks.count; ++i) {
    const uint64_t index = picks.load<Index>(i);
    if (index - last != step) return false;
    last = index;
  }
  return last < blocks;
}

}  // namespace

Picks make_picks(const towline_picks_t* given, uint64_t blocks, const char* side) {
  Picks picks;
  picks.count = blocks;
  if (given == nullptr) return picks;
  picks.indices = given->indices;
  picks.count = given->count;
  if (picks.is_range()) {
    picks.start = given->start;
    picks.step = given->step;
    check_limits(picks, blocks, side);
    return picks;
  }
  picks.index_bytes = given->index_bytes;
  if (picks.index_bytes != 4 && picks.index_bytes != 8)
    fail(Status::kInvalidArgument, "the {} indices have {} bytes each: only 4 and 8 are possible", side,
         picks.index_bytes);
  check_limits(picks, blocks, side);
  uint64_t step = 0;
  const bool regular = picks.index_bytes == 4 ? find_step<uint32_t>(picks, blocks, step)
                                              : find_step<uint64_t>(picks, blocks, step);
  if (regular) {
    picks.start = picks.at(0);
    picks.step = step;
    picks.indices = nullptr;
  }
  return picks;
}

void check_range(const Picks& picks, uint64_t blocks, const char* side) {
  if (picks.is_range()) return;
  uint64_t outside = 0;  // without a branch for each
  for (uint64_t i = 0; i < picks.count; ++i) outside |= picks.at(i) >= blocks ? 1 : 0;
  if (outside == 0) return;
  uint64_t position = 0;
  while (picks.at(position) < blocks) ++position;
  fail(Status::kOutOfRange, "{} index {} at position {} of {}: the list has {} blocks", side,
       show_index(picks, position), position, picks.count, blocks);
}

void SeenIndices::Free::operator()(void* memory) const noexcept { std::free(memory); }

SeenIndices::SeenIndices(uint64_t count, uint64_t blocks) {
  if (blocks <= kSmallListBlocks || blocks / kBitsPerIndex <= count) {
    bits_.reset(zeroed(blocks / 64 + 1));
    return;
  }
  const uint64_t slots = std::bit_ceil(count * 2 + 2);
  slot_shift_ = 64 - static_cast<uint32_t>(std::countr_zero(slots));
  slots_.reset(zeroed(slots));
}

bool SeenIndices::add_hashed(uint32_t index) noexcept {
  const uint64_t wanted = uint64_t{index} + 1;
  const uint64_t mask = UINT64_MAX >> slot_shift_;
  for (uint64_t slot = (wanted * 0x9e3779b97f4a7c15ULL) >> slot_shift_;; slot = (slot + 1) & mask) {
    if (slots_.get()[slot] == wanted) return false;
    if (slots_.get()[slot] == 0) {
      slots_.get()[slot] = wanted;
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
