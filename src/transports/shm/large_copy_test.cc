#include "transports/shm/large_copy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "plan/plan_test_support.h"

namespace towline::shm {
namespace {

constexpr uint64_t kElsewhere = uint64_t{0x7000} << 32;  // where the peer has it
constexpr uint64_t kRoom = 1 << 20;

// Pieces between the first half of ours and anywhere in theirs, so often that each way of
// copying has its turn.
void expect_exact(uint64_t piece, uint32_t op, uint64_t step) {
  std::vector<uint8_t> here(kRoom);
  std::vector<uint8_t> there(kRoom);
  const auto address = reinterpret_cast<uint64_t>(here.data());
  const uint64_t count = kRoom / piece;
  const auto mine = ResolvedList::from_blocks(std::vector{testing::entry(address, piece, {{count, piece}})},
                                              RegionIndex(std::vector{testing::region(1, address, kRoom)}));
  const auto theirs =
      ResolvedList::from_blocks(std::vector{testing::entry(kElsewhere, piece, {{count, piece}})},
                                RegionIndex(std::vector{testing::region(1, kElsewhere, kRoom)}));
  const uint64_t deltas[] = {reinterpret_cast<uint64_t>(there.data()) - kElsewhere};
  std::mt19937 random(7);
  std::vector<uint32_t> order(count);
  for (uint32_t i = 0; i < count; ++i) order[i] = i;
  LargeCopy copy;
  for (int round = 0; round < 24; ++round) {
    std::shuffle(order.begin(), order.end(), random);
    const std::vector<uint32_t> picked(order.begin(), order.begin() + static_cast<ptrdiff_t>(count / 2));
    const towline_picks_t local = testing::pick_range(0, 1, picked.size());
    const towline_picks_t remote = testing::pick_indices(picked);
    const Plan plan = Plan::compile(*mine, &local, *theirs, &remote, op);
    std::vector<uint8_t>& from = op == TOWLINE_READ ? there : here;
    std::vector<uint8_t>& to = op == TOWLINE_READ ? here : there;
    for (uint64_t i = 0; i < kRoom; i += sizeof i) {
      const uint64_t word = (i + 1) * 0x9e3779b97f4a7c15 + static_cast<uint64_t>(round);
      std::memcpy(from.data() + i, &word, sizeof word);
    }
    std::vector<uint8_t> expected = to;
    for (uint64_t i = 0; i < picked.size(); ++i) {
      const uint64_t source = (op == TOWLINE_READ ? picked[i] : i) * piece;
      const uint64_t target = (op == TOWLINE_READ ? i : picked[i]) * piece;
      std::memcpy(expected.data() + target, from.data() + source, piece);
    }
    plugin::Cursor cursor(plan.view());
    while (!cursor.done()) copy.step(cursor, piece, deltas, op, step);
    ASSERT_EQ(cursor.position(), picked.size() * piece);
    ASSERT_TRUE(to == expected) << round;
  }
}

TEST(LargeCopy, PiecesArriveExactlyWhicheverWayTheyGo) {
  expect_exact(64 << 10, TOWLINE_WRITE, 256 << 10);
  expect_exact(64 << 10, TOWLINE_READ, 256 << 10);
  expect_exact(256 << 10, TOWLINE_WRITE, (1 << 20) / 3);
}

TEST(LargeCopy, IsForPlansBeyondTheCachesInPiecesOfSomePages) {
  EXPECT_TRUE(LargeCopy::is_large(uint64_t{64} << 20, 64 << 10));
  EXPECT_FALSE(LargeCopy::is_large(uint64_t{4} << 20, 64 << 10));
  EXPECT_FALSE(LargeCopy::is_large(uint64_t{64} << 20, 4 << 10));
}

}  // namespace
}  // namespace towline::shm
