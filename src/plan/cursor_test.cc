#include <gtest/gtest.h>
#include <towline/plugin/cursor.hpp>

#include <algorithm>
#include <numeric>

#include "plan/plan_test_support.h"

namespace towline {
namespace {

using testing::Block;
using testing::Byte;
using testing::bytes_of;
using testing::entry;
using testing::error_of;
using testing::expand;
using testing::kBase;
using testing::kSpan;
using testing::pick_indices;
using testing::pick_range;
using testing::region;
using testing::walk;

// A list with the blocks it stands for.
struct KnownList {
  std::shared_ptr<const ResolvedList> list;
  std::vector<Block> blocks;
};

KnownList resolve(const std::vector<towline_blocks_t>& entries, const RegionIndex& regions) {
  return {ResolvedList::from_blocks(entries, regions), expand(entries)};
}

KnownList resolve_flat(const std::vector<Block>& blocks, const RegionIndex& regions) {
  FlatBlocks flat;
  flat.count = blocks.size();
  flat.addresses = &blocks[0].address;
  flat.address_stride_bytes = sizeof(Block);
  flat.lengths = &blocks[0].length;
  flat.length_stride_bytes = sizeof(Block);
  return {ResolvedList::from_flat(flat, regions), blocks};
}

// Up to some hundred blocks without overlap: dimensions nest, their order is shuffled, neighbours touch now
// and then.
KnownList random_nested(Random& random, uint64_t length, uint64_t address, const RegionIndex& regions) {
  std::vector<towline_blocks_t> entries;
  const bool alike = random.chance(0.5);
  towline_blocks_t pattern = {};
  for (uint64_t e = random.between(1, 4); e > 0; --e) {
    uint64_t span = length;
    if (pattern.length == 0 || !alike) {
      std::vector<std::pair<uint64_t, uint64_t>> dimensions;
      for (uint64_t d = random.between(0, 4); d > 0; --d) {
        const uint64_t count = random.between(1, 5);
        const uint64_t stride = span + (random.chance(0.5) ? 0 : random.below(3 * length));
        dimensions.emplace_back(count, stride);
        span = (count - 1) * stride + span;
      }
      if (random.chance(0.7)) {
        std::reverse(dimensions.begin(), dimensions.end());
      } else {
        std::shuffle(dimensions.begin(), dimensions.end(), random);
      }
      pattern = entry(0, length, dimensions);
    }
    span = pattern.length;
    for (uint32_t d = 0; d < pattern.dimensions; ++d) span += (pattern.count[d] - 1) * pattern.stride[d];
    entries.push_back(pattern);
    entries.back().address = address;
    address += span + (random.chance(0.3) ? 0 : random.below(100));
  }
  return resolve(entries, regions);
}

KnownList random_flat(Random& random, uint64_t length, uint64_t address, const RegionIndex& regions) {
  std::vector<Block> blocks(random.between(1, 300));
  const bool varying = length == 0;
  for (Block& block : blocks) {
    block = {address, varying ? random.between(1, 40) : length};
    address += block.length + (random.chance(0.5) ? 0 : random.below(50));
  }
  if (random.chance(0.8)) std::shuffle(blocks.begin(), blocks.end(), random);
  return resolve_flat(blocks, regions);
}

KnownList random_list(Random& random, uint64_t length, uint64_t address, const RegionIndex& regions) {
  return random.chance(0.6) ? random_nested(random, length, address, regions)
                            : random_flat(random, length, address, regions);
}

// Picks `count` of `blocks`, in one of the ways there are. `indices` says the same in plain numbers.
struct RandomPicks {
  towline_picks_t picks = {};
  std::vector<uint64_t> indices;
  std::vector<uint32_t> indices_32;
};

RandomPicks random_picks(Random& random, uint64_t blocks, uint64_t count) {
  RandomPicks result;
  if (random.chance(0.4)) {
    const uint64_t step =
        count == 1 ? random.below(5) : random.between(1, std::max<uint64_t>(1, (blocks - 1) / (count - 1)));
    const uint64_t start = random.below(blocks - (count - 1) * step);
    for (uint64_t i = 0; i < count; ++i) result.indices.push_back(start + i * step);
    if (random.chance(0.5)) {
      result.picks = pick_range(start, step, count);
      return result;
    }
  } else {
    for (uint64_t i = 0; i < blocks; ++i) result.indices.push_back(i);
    // Shuffled in pieces, so that some picks are consecutive.
    const uint64_t piece = random.between(1, 8);
    for (uint64_t i = 0; i + piece <= blocks; i += piece) {
      const uint64_t other = random.below(blocks / piece) * piece;
      for (uint64_t k = 0; k < piece; ++k) std::swap(result.indices[i + k], result.indices[other + k]);
    }
    result.indices.resize(count);
  }
  if (random.chance(0.5)) {
    result.indices_32.assign(result.indices.begin(), result.indices.end());
    result.picks = pick_indices(result.indices_32);
  } else {
    result.picks = pick_indices(result.indices);
  }
  return result;
}

std::vector<Byte> expected_bytes(const KnownList& local, const RandomPicks& local_picks,
                                 const KnownList& remote, const RandomPicks& remote_picks) {
  std::vector<uint64_t> sides[2];
  for (const uint64_t index : local_picks.indices)
    for (uint64_t i = 0; i < local.blocks[index].length; ++i)
      sides[0].push_back(local.blocks[index].address + i);
  for (const uint64_t index : remote_picks.indices)
    for (uint64_t i = 0; i < remote.blocks[index].length; ++i)
      sides[1].push_back(remote.blocks[index].address + i);
  std::vector<Byte> bytes;
  for (size_t i = 0; i < sides[0].size(); ++i) bytes.push_back({sides[0][i], sides[1][i]});
  return bytes;
}

void expect_joined(const std::vector<towline_segment>& segments) {
  for (size_t i = 1; i < segments.size(); ++i) {
    const towline_segment& before = segments[i - 1];
    const towline_segment& next = segments[i];
    EXPECT_FALSE(before.local + before.length == next.local && before.remote + before.length == next.remote &&
                 before.local_region == next.local_region && before.remote_region == next.remote_region)
        << "segments " << i - 1 << " and " << i << " should be one";
  }
}

void expect_windows(const towline_plan& plan, const std::vector<Byte>& expected, Random& random) {
  for (int round = 0; round < 4; ++round) {
    const uint64_t begin = random.below(expected.size() + 1);
    const uint64_t end = random.between(begin, expected.size());
    const size_t capacity = random.between(1, random.chance(0.5) ? 3 : 100);
    plugin::Cursor cursor(plan, begin, end);
    EXPECT_EQ(cursor.position(), begin);
    std::vector<Byte> found;
    std::vector<towline_segment> window(capacity);
    while (!cursor.done()) {
      const uint64_t max_bytes = random.chance(0.3) ? UINT64_MAX : random.between(1, 200);
      const uint64_t before = cursor.position();
      const size_t count = cursor.next(window.data(), capacity, max_bytes);
      ASSERT_GT(count, 0U);
      ASSERT_LE(count, capacity);
      const std::vector<towline_segment> segments(window.begin(),
                                                  window.begin() + static_cast<ptrdiff_t>(count));
      expect_joined(segments);
      const std::vector<Byte> bytes = bytes_of(segments);
      EXPECT_EQ(cursor.position() - before, bytes.size());
      EXPECT_LE(bytes.size(), max_bytes);
      if (count < capacity && !cursor.done()) {
        EXPECT_EQ(bytes.size(), max_bytes);
      }
      found.insert(found.end(), bytes.begin(), bytes.end());
      if (random.chance(0.1)) cursor.seek(cursor.position(), end);
    }
    EXPECT_EQ(cursor.next(window.data(), capacity, UINT64_MAX), 0U);
    const auto first = expected.begin() + static_cast<ptrdiff_t>(begin);
    ASSERT_EQ(found, std::vector<Byte>(first, first + static_cast<ptrdiff_t>(end - begin)));
  }
}

void expect_one_segment(const towline_plan& plan, const std::vector<Byte>& expected) {
  towline_segment window[2];
  plugin::Cursor cursor(plan);
  const bool is_one = cursor.next(window, 2, plan.bytes) == 1 && cursor.done();
  towline_segment whole = {};
  ASSERT_EQ(plugin::one_segment(plan, whole), is_one);
  if (is_one) {
    EXPECT_EQ(bytes_of({whole}), expected);
  }
}

void expect_positions(const towline_plan& plan, const RandomPicks& picks, const KnownList& local,
                      Random& random) {
  std::vector<uint64_t> block_of;
  for (size_t i = 0; i < picks.indices.size(); ++i)
    block_of.insert(block_of.end(), local.blocks[picks.indices[i]].length, i);
  EXPECT_EQ(plugin::position_to_block(plan, plan.bytes), plan.blocks);
  for (int i = 0; i < 10; ++i) {
    const uint64_t position = random.below(block_of.size());
    EXPECT_EQ(plugin::position_to_block(plan, position), block_of[position]);
  }
}

// One or a few regions; block lists that straddle them must not notice.
RegionIndex random_regions(Random& random) {
  std::vector<towline_region_ref> regions;
  if (random.chance(0.6)) {
    regions.push_back(region(1, kBase, kSpan));
  } else {
    // Overlapping by so much that every block lies in one.
    for (uint64_t i = 0; i < 64; ++i) regions.push_back(region(i + 1, kBase + i * 1000, 2000));
    regions.push_back(region(100, kBase + 64 * 1000, kSpan));
  }
  return RegionIndex(regions);
}

TEST(Cursor, yields_what_the_lists_mean_for_equal_blocks) {
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const RegionIndex regions = random_regions(random);
    const uint64_t length = random.between(1, 40);
    const KnownList local = random_list(random, length, kBase + 8 + random.below(9), regions);
    const KnownList remote = random_list(random, length, kBase + 3 + random.below(5), regions);
    const uint64_t count = random.between(1, std::min(local.blocks.size(), remote.blocks.size()));
    const RandomPicks from = random_picks(random, local.blocks.size(), count);
    const RandomPicks to = random_picks(random, remote.blocks.size(), count);
    const Plan plan = Plan::compile(*local.list, &from.picks, *remote.list, &to.picks, TOWLINE_WRITE);
    const std::vector<Byte> expected = expected_bytes(local, from, remote, to);
    ASSERT_EQ(plan.bytes(), expected.size());
    EXPECT_EQ(plan.view().blocks, count);
    EXPECT_EQ(plan.view().block_length, length);
    expect_windows(plan.view(), expected, random);
    expect_one_segment(plan.view(), expected);
    expect_positions(plan.view(), from, local, random);
  }
}

TEST(Cursor, yields_what_the_lists_mean_for_blocks_cut_to_fit) {
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const RegionIndex regions = random_regions(random);
    const bool divides = random.chance(0.6);
    const uint64_t unit = divides ? random.between(1, 12) : uint64_t{64};
    const uint64_t local_units = divides && random.chance(0.5) ? 1 : random.between(1, 4);
    const uint64_t remote_units = divides && local_units != 1 ? 1 : random.between(1, 5);
    const KnownList local = random_list(random, unit * local_units, kBase + 8, regions);
    const KnownList remote = random_list(random, unit * remote_units, kBase + 3, regions);
    const uint64_t together = std::lcm(local_units, remote_units);
    const uint64_t local_each = together / local_units;
    const uint64_t remote_each = together / remote_units;
    const uint64_t most = std::min(local.blocks.size() / local_each, remote.blocks.size() / remote_each);
    if (most == 0) continue;
    const uint64_t times = random.between(1, most);
    const RandomPicks from = random_picks(random, local.blocks.size(), times * local_each);
    const RandomPicks to = random_picks(random, remote.blocks.size(), times * remote_each);
    const Plan plan = Plan::compile(*local.list, &from.picks, *remote.list, &to.picks, TOWLINE_READ);
    const std::vector<Byte> expected = expected_bytes(local, from, remote, to);
    ASSERT_EQ(plan.bytes(), expected.size());
    EXPECT_EQ(plan.picked_blocks(), from.indices.size());
    for (int i = 0; i < 10; ++i) {
      const uint64_t position = random.below(plan.bytes());
      EXPECT_EQ(plan.picked_block_at(position), position / (unit * local_units));
    }
    expect_windows(plan.view(), expected, random);
    expect_one_segment(plan.view(), expected);
  }
}

TEST(Cursor, yields_what_the_lists_mean_for_lengths_that_differ) {
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const RegionIndex regions = random_regions(random);
    KnownList local;
    KnownList remote;
    if (random.chance(0.5)) {
      local = random_flat(random, 0, kBase + 8, regions);
      uint64_t address = kBase + 3;
      std::vector<Block> blocks = local.blocks;
      for (Block& block : blocks) {
        block.address = address;
        address += block.length + random.below(3);
      }
      remote = resolve_flat(blocks, regions);
    } else {
      std::vector<towline_blocks_t> entries[2];
      uint64_t address = kBase;
      for (uint64_t e = random.between(1, 5); e > 0; --e) {
        const uint64_t length = random.between(1, 20);
        const uint64_t count = random.between(1, 30);
        for (auto& side : entries) {
          side.push_back(entry(address, length, {{count, length + random.below(2)}}));
          address += count * (length + 2);
        }
      }
      local = resolve(entries[0], regions);
      remote = resolve(entries[1], regions);
    }
    const uint64_t count = random.between(1, local.blocks.size());
    const RandomPicks picks = random_picks(random, local.blocks.size(), count);
    const Plan plan = Plan::compile(*local.list, &picks.picks, *remote.list, &picks.picks, TOWLINE_WRITE);
    const std::vector<Byte> expected = expected_bytes(local, picks, remote, picks);
    ASSERT_EQ(plan.bytes(), expected.size());
    expect_windows(plan.view(), expected, random);
    expect_one_segment(plan.view(), expected);
    expect_positions(plan.view(), picks, local, random);
  }
}

TEST(Cursor, makes_whole_contiguous_extents_one_segment_without_walking_blocks) {
  const RegionIndex regions(std::vector{region(1, kBase, uint64_t{1} << 50)});
  // Four thousand million blocks: walking them would take many seconds.
  const KnownList local{ResolvedList::from_blocks(std::vector{entry(kBase, 64, {{4000000000, 64}})}, regions),
                        {}};
  const KnownList remote{
      ResolvedList::from_blocks(std::vector{entry(kBase, 64, {{1000000000, 64}}),
                                            entry(kBase + 64000000000, 64, {{3000000000, 64}})},
                                regions),
      {}};
  const Plan plan = Plan::compile(*local.list, nullptr, *remote.list, nullptr, TOWLINE_WRITE);
  plugin::Cursor cursor(plan.view());
  const auto segments = walk(cursor);
  ASSERT_EQ(segments.size(), 1U);
  EXPECT_EQ(segments[0].length, 256000000000U);
  cursor.seek(100000000000, 100000000007);
  const auto piece = walk(cursor);
  ASSERT_EQ(piece.size(), 1U);
  EXPECT_EQ(piece[0].local, kBase + 100000000000);
  EXPECT_EQ(piece[0].length, 7U);
}

TEST(Cursor, repeats_a_source_block_picked_with_step_zero) {
  const RegionIndex regions(std::vector{region(1, kBase, kSpan)});
  for (const std::vector<std::pair<uint64_t, uint64_t>>& shape :
       {std::vector<std::pair<uint64_t, uint64_t>>{{20, 32}}, {{4, 100}, {5, 16}}}) {
    const auto source = ResolvedList::from_blocks(std::vector{entry(kBase, 16, shape)}, regions);
    const auto target = ResolvedList::from_blocks(std::vector{entry(kBase + 10000, 16, {{20, 32}})}, regions);
    const towline_picks_t same = pick_range(3, 0, 20);
    const Plan plan = Plan::compile(*source, &same, *target, nullptr, TOWLINE_WRITE);
    plugin::Cursor cursor(plan.view());
    const auto segments = walk(cursor, 7);
    ASSERT_EQ(segments.size(), 20U);
    for (size_t i = 0; i < 20; ++i) {
      EXPECT_EQ(segments[i].local, segments[0].local);
      EXPECT_EQ(segments[i].remote, kBase + 10000 + i * 32);
    }
  }
}

TEST(Cursor, gives_nothing_when_asked_for_nothing) {
  const RegionIndex regions(std::vector{region(1, kBase, kSpan)});
  const auto list = ResolvedList::from_blocks(std::vector{entry(kBase, 16, {{20, 32}})}, regions);
  const auto other = ResolvedList::from_blocks(std::vector{entry(kBase + 1000, 16, {{20, 32}})}, regions);
  const Plan plan = Plan::compile(*list, nullptr, *other, nullptr, TOWLINE_WRITE);
  plugin::Cursor cursor(plan.view());
  towline_segment segment;
  EXPECT_EQ(cursor.next(&segment, 0, 100), 0U);
  EXPECT_EQ(cursor.next(&segment, 1, 0), 0U);
  EXPECT_EQ(cursor.position(), 0U);
  plugin::Cursor beyond(plan.view(), UINT64_MAX, UINT64_MAX);
  EXPECT_TRUE(beyond.done());
  EXPECT_EQ(beyond.position(), plan.bytes());
  plugin::Cursor backwards(plan.view(), 50, 20);
  EXPECT_TRUE(backwards.done());
}

TEST(Divider, is_exact_for_32_bits) {
  Random random(1);
  for (int i = 0; i < 200000; ++i) {
    const uint64_t divisor = 1 + (random.next() & UINT32_MAX) % (uint64_t{1} << random.between(1, 32));
    const plugin::detail::Divider divider(divisor);
    const uint64_t some = random.next() & UINT32_MAX;
    const uint64_t edge = std::min<uint64_t>(some / divisor * divisor, UINT32_MAX);
    for (const uint64_t dividend : {some, edge, edge == 0 ? 0 : edge - 1, uint64_t{UINT32_MAX}, uint64_t{0}})
      ASSERT_EQ(divider.quotient(dividend), dividend / divisor) << dividend << " / " << divisor;
  }
}

}  // namespace
}  // namespace towline
