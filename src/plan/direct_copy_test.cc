#include "plan/direct_copy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "plan/block_copy.h"
#include "plan/plan_test_support.h"

namespace towline {
namespace {

using testing::entry;
using testing::region;

// Two buffers, the second also reached under an address of another process.
class DirectCopyTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kBytes = 1 << 16;
  static constexpr uint64_t kElsewhere = uint64_t{0x7000} << 32;

  DirectCopyTest() : here_(kBytes), there_(kBytes) {
    for (uint64_t i = 0; i < kBytes; ++i) {
      here_[i] = static_cast<uint8_t>(i * 31 + i / 256);
      there_[i] = static_cast<uint8_t>(i * 17 + 5);
    }
  }

  [[nodiscard]] uint64_t here() const { return reinterpret_cast<uint64_t>(here_.data()); }
  [[nodiscard]] uint64_t delta() const { return reinterpret_cast<uint64_t>(there_.data()) - kElsewhere; }

  // Pages of a random order; remote ones lie in two regions.
  Plan random_plan(Random& random, uint32_t op) {
    const RegionIndex local(std::vector{region(1, here(), kBytes)});
    const RegionIndex remote(
        std::vector{region(1, kElsewhere, kBytes / 2), region(2, kElsewhere + kBytes / 2, kBytes / 2)});
    const uint64_t length = uint64_t{1} << random.between(0, 10);
    const uint64_t count = kBytes / length;
    from_ = ResolvedList::from_blocks(std::vector{entry(here(), length, {{count, length}})}, local);
    to_ = ResolvedList::from_blocks(std::vector{entry(kElsewhere, length, {{count, length}})}, remote);
    std::vector<uint32_t> indices(count);
    for (uint32_t i = 0; i < count; ++i) indices[i] = i;
    std::shuffle(indices.begin(), indices.end(), random);
    indices.resize(random.between(1, count));
    const towline_picks_t picks = testing::pick_indices(indices);
    const towline_picks_t other = testing::pick_range(0, 1, indices.size());
    return Plan::compile(*from_, &other, *to_, &picks, op);
  }

  std::vector<uint8_t> here_;
  std::vector<uint8_t> there_;
  std::shared_ptr<const ResolvedList> from_;  // the last plan's
  std::shared_ptr<const ResolvedList> to_;
};

TEST_F(DirectCopyTest, moves_the_plans_bytes_and_no_others_in_slices_of_any_size) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const uint32_t op = random.chance(0.5) ? TOWLINE_READ : TOWLINE_WRITE;
    const Plan plan = random_plan(random, op);
    const uint64_t deltas[] = {delta(), delta()};
    const uint64_t begin = random.below(plan.bytes());
    const uint64_t end = random.between(begin, plan.bytes());
    std::vector<uint8_t> here = here_;
    std::vector<uint8_t> there = there_;
    plugin::Cursor cursor(plan.view(), begin, end);
    for (const testing::Byte& byte : testing::bytes_of(testing::walk(cursor))) {
      uint8_t& local = here[byte.local - this->here()];
      uint8_t& remote = there[byte.remote - kElsewhere];
      (op == TOWLINE_READ ? local : remote) = op == TOWLINE_READ ? remote : local;
    }
    DirectCopy copy(plan.view(), deltas, begin, end, op);
    uint64_t copied = 0;
    while (!copy.done()) {
      const uint64_t most = random.between(1, 5000);
      const DirectCopy::Slice slice = copy.step(most);
      EXPECT_LE(slice.bytes, most);
      EXPECT_EQ(slice.done, copy.done());
      copied += slice.bytes;
      EXPECT_EQ(copy.position(), begin + copied);
    }
    EXPECT_EQ(copied, end - begin);
    ASSERT_EQ(here_, here);
    ASSERT_EQ(there_, there);
  }
}

TEST_F(DirectCopyTest, copies_onto_itself_with_overlap_as_through_a_buffer) {
  const RegionIndex regions(std::vector{region(1, here(), kBytes)});
  for (const uint64_t shift : {uint64_t{0}, uint64_t{1}, uint64_t{100}, uint64_t{4095}}) {
    const std::vector<uint8_t> before = here_;
    const auto from = ResolvedList::from_blocks(std::vector{entry(here() + 5000, 4096)}, regions);
    const auto to = ResolvedList::from_blocks(std::vector{entry(here() + 5000 + shift, 4096)}, regions);
    const Plan plan = Plan::compile(*from, nullptr, *to, nullptr, TOWLINE_WRITE);
    EXPECT_EQ(copy_plan(plan.view(), nullptr, 0, plan.bytes(), TOWLINE_WRITE), 4096U);
    EXPECT_EQ(std::memcmp(&here_[5000 + shift], &before[5000], 4096), 0);
  }
}

// Rows of blocks with and without gaps, whose addresses are worked out without a cursor.
TEST_F(DirectCopyTest, moves_rows_of_blocks_as_the_cursor_names_them) {
  const RegionIndex local(std::vector{region(1, here(), kBytes)});
  const RegionIndex remote(std::vector{region(1, kElsewhere, kBytes)});
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const uint32_t op = random.chance(0.5) ? TOWLINE_READ : TOWLINE_WRITE;
    const uint64_t length = uint64_t{1} << random.between(0, 8);
    const auto stride = [&] { return random.chance(0.5) ? length : length + random.between(1, 64); };
    const uint64_t mine = stride();
    const uint64_t theirs = stride();
    const uint64_t count = (kBytes - length) / std::max(mine, theirs);
    const auto from = ResolvedList::from_blocks(std::vector{entry(here(), length, {{count, mine}})}, local);
    const auto to =
        ResolvedList::from_blocks(std::vector{entry(kElsewhere, length, {{count, theirs}})}, remote);
    const uint64_t step = random.between(1, 3);
    const uint64_t picked = random.between(1, count / step);
    std::vector<uint32_t> indices(picked);
    for (uint32_t i = 0; i < picked; ++i) indices[i] = i;
    if (random.chance(0.5)) std::shuffle(indices.begin(), indices.end(), random);
    const towline_picks_t by_index = testing::pick_indices(indices);
    const towline_picks_t by_range = testing::pick_range(0, step, picked);
    const Plan plan = Plan::compile(*from, &by_range, *to, random.chance(0.5) ? &by_index : &by_range, op);
    std::vector<uint8_t> here = here_;
    std::vector<uint8_t> there = there_;
    plugin::Cursor cursor(plan.view(), 0, plan.bytes());
    for (const testing::Byte& byte : testing::bytes_of(testing::walk(cursor))) {
      uint8_t& near = here[byte.local - this->here()];
      uint8_t& far = there[byte.remote - kElsewhere];
      (op == TOWLINE_READ ? near : far) = op == TOWLINE_READ ? far : near;
    }
    const uint64_t deltas[] = {delta()};
    EXPECT_EQ(copy_plan(plan.view(), deltas, 0, plan.bytes(), op), plan.bytes());
    ASSERT_EQ(here_, here);
    ASSERT_EQ(there_, there);
  }
}

TEST_F(DirectCopyTest, is_done_at_once_with_nothing_to_copy) {
  Random random(1);
  const Plan plan = random_plan(random, TOWLINE_WRITE);
  DirectCopy copy(plan.view(), nullptr, plan.bytes(), plan.bytes(), TOWLINE_WRITE);
  EXPECT_TRUE(copy.done());
  const DirectCopy::Slice slice = copy.step(UINT64_MAX);
  EXPECT_EQ(slice.bytes, 0U);
  EXPECT_TRUE(slice.done);
}

TEST(block_copy, copies_any_block_wherever_it_lies_and_nothing_beside_it) {
  std::vector<uint8_t> source(40 << 10);
  for (std::size_t i = 0; i < source.size(); ++i) source[i] = static_cast<uint8_t>(i * 31 + i / 256);
  for (const std::size_t bytes : {1, 64, 255, 256, 257, 511, 512, 4095, 4096, 5000, 16384, 16385, 32768}) {
    for (const std::size_t skew : {0, 1, 63}) {
      std::vector<uint8_t> target(bytes + 256, 0x5a);
      uint8_t* const to = target.data() + 100 + skew;
      const uint8_t* const from = source.data() + 2 * skew;
      choose_block_copy(to, from, bytes)(to, from, bytes);
      EXPECT_TRUE(std::equal(from, from + bytes, to)) << bytes << " at " << skew;
      EXPECT_TRUE(std::all_of(target.data(), to, [](uint8_t byte) { return byte == 0x5a; })) << bytes;
      EXPECT_TRUE(std::all_of(to + bytes, target.data() + target.size(), [](uint8_t byte) {
        return byte == 0x5a;
      })) << bytes;
    }
  }
}

TEST(block_copy, copies_onto_itself_as_if_through_a_buffer) {
  for (const std::ptrdiff_t by : {-4000, -100, -1, 0, 1, 100, 4000}) {
    std::vector<uint8_t> bytes(16 << 10);
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i * 31 + i / 256);
    const std::vector<uint8_t> before = bytes;
    uint8_t* const from = bytes.data() + 5000;
    choose_block_copy(from + by, from, 4096)(from + by, from, 4096);
    EXPECT_TRUE(std::equal(before.begin() + 5000, before.begin() + 5000 + 4096, from + by)) << by;
  }
}

}  // namespace
}  // namespace towline
