#include "bench/row.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "failure.h"

namespace tool::bench {
namespace {

TEST(Pattern, GoesWithItsNumbersOfProcesses) {
  EXPECT_NO_THROW(check_pattern(Pattern::kPairwise, 2, 2));
  EXPECT_THROW(check_pattern(Pattern::kPairwise, 2, 1), Failure);
  EXPECT_THROW(check_pattern(Pattern::kManyToOne, 2, 2), Failure);
  EXPECT_THROW(check_pattern(Pattern::kOneToMany, 2, 2), Failure);
  EXPECT_THROW(check_pattern(Pattern::kTensorParallel, 2, 3), Failure);
  EXPECT_THROW(check_pattern(Pattern::kTensorParallel, 0, 2), Failure);
  EXPECT_THROW((void)parse_pattern("ring"), Failure);
}

TEST(Pattern, TensorParallelSharesCoverEveryBlockOnce) {
  for (const auto& [initiators, targets] :
       std::vector<std::pair<uint32_t, uint32_t>>{{1, 4}, {2, 4}, {4, 2}, {3, 3}}) {
    std::map<uint32_t, uint64_t> at_target;
    for (uint32_t initiator = 0; initiator < initiators; ++initiator) {
      uint64_t here = 0;
      for (const Share& share : shares_of(Pattern::kTensorParallel, initiators, targets, initiator, 4096)) {
        EXPECT_LE(share.local_offset + share.length, share.local_block);
        EXPECT_LE(share.remote_offset + share.length, share.remote_block);
        here += share.length;
        at_target[share.target] += share.length;
        EXPECT_LE(here, share.local_block);
      }
    }
    for (const auto& [target, bytes] : at_target)
      EXPECT_EQ(bytes, targets > initiators ? 4096u * initiators / targets : 4096u);
    EXPECT_EQ(at_target.size(), targets);
  }
  EXPECT_THROW((void)shares_of(Pattern::kTensorParallel, 1, 3, 0, 4096), Failure);
}

TEST(Row, PicksAreDistinctAndTheSameOnBothSides) {
  const Row row{.size = 4096, .batch = 100};
  const Order order{.seed = 1, .initiator = 2, .thread = 3, .remote = true};
  const auto picks = pick_blocks(row, 1 << 20, order);
  EXPECT_EQ(picks, pick_blocks(row, 1 << 20, order));
  EXPECT_EQ(std::set<uint32_t>(picks.begin(), picks.end()).size(), 100u);
  EXPECT_LT(*std::max_element(picks.begin(), picks.end()), 256u);
  EXPECT_EQ(pick_blocks(row, 0, {.sequential = true})[99], 99u);
}

TEST(Row, EveryWrongByteIsSeen) {
  std::vector<std::byte> memory(10 * 104);
  const Area area{
      .base = reinterpret_cast<uint64_t>(memory.data()), .stride = 104, .length = 101, .identity = 5};
  const std::vector<uint32_t> picks{7, 0, 3};
  fill_blocks(area, picks, 2);
  EXPECT_EQ(count_wrong_blocks(area, picks, 2), 0u);
  EXPECT_EQ(count_wrong_blocks(area, picks, 1), 3u);
  EXPECT_EQ(count_wrong_blocks(area, {7, 3, 0}, 2), 2u) << "misplaced";
  for (const size_t byte : {size_t{0}, size_t{50}, size_t{100}}) {
    memory[3 * 104 + byte] ^= std::byte{1};
    EXPECT_EQ(count_wrong_blocks(area, picks, 2), 1u);
    memory[3 * 104 + byte] ^= std::byte{1};
  }
}

TEST(Row, BatchesFill64MiB) {
  EXPECT_EQ(default_batch(4096), 16384u);
  EXPECT_EQ(default_batch(1 << 20), 64u);
  EXPECT_EQ(default_batch(1 << 30), 1u);
  EXPECT_EQ(default_batch(64), 16384u);
}

}  // namespace
}  // namespace tool::bench
