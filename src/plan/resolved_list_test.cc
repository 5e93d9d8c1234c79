#include "plan/resolved_list.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "plan/overlap.h"
#include "plan/plan_test_support.h"

namespace towline {
namespace {

using testing::Block;
using testing::entry;
using testing::error_of;
using testing::expand;
using testing::kBase;
using testing::kSpan;
using testing::region;

RegionIndex one_region() { return RegionIndex(std::vector{region(1, kBase, kSpan)}); }

FlatBlocks flat_of(const std::vector<Block>& blocks) {
  FlatBlocks flat;
  flat.count = blocks.size();
  flat.addresses = &blocks[0].address;
  flat.address_stride_bytes = sizeof(Block);
  flat.lengths = &blocks[0].length;
  flat.length_stride_bytes = sizeof(Block);
  return flat;
}

std::vector<Block> blocks_of(const ResolvedList& list) {
  std::vector<Block> blocks;
  plugin::detail::ListReader reader(list.view());
  for (uint64_t i = 0; i < list.blocks(); ++i) {
    const auto row = reader.row(i, 1);
    blocks.push_back({row.address, row.length});
  }
  return blocks;
}

void expect_refused(const std::vector<towline_blocks_t>& entries, const RegionIndex& regions, Status code,
                    const std::string& part) {
  const auto [status, text] = error_of([&] { (void)ResolvedList::from_blocks(entries, regions); });
  EXPECT_EQ(status, code) << text;
  EXPECT_NE(text.find(part), std::string::npos) << text;
}

TEST(ResolvedList, uses_entries_as_it_checked_them_while_another_thread_writes_to_them) {
  constexpr uint64_t kLarge = uint64_t{5} << 30;
  std::vector<Block> blocks;
  for (uint64_t i = 0; i < 10000; ++i) blocks.push_back({kBase + i * kLarge, i % 2 == 0 ? kLarge : 4096});
  const RegionIndex regions = one_region();
  for (uint64_t* const place : {&blocks[5000].length, &blocks[5000].address}) {
    testing::while_written(*place, uint64_t{*place}, uint64_t{1} << 62, [&] {
      const auto [status, text] = error_of([&] {
        const auto list = ResolvedList::from_flat(flat_of(blocks), regions);
        for (const auto [address, length] : blocks_of(*list)) {
          EXPECT_GE(address, kBase);
          EXPECT_LE(length, kSpan - (address - kBase));
        }
      });
      EXPECT_TRUE(status == Status::kOk || status == Status::kOutOfRange) << text;
      return status;
    });
  }
}

TEST(ResolvedList, keeps_a_paged_layer_as_one_extent) {
  const auto list = ResolvedList::from_blocks(std::vector{entry(kBase, 4096, {{1000, 8192}})}, one_region());
  EXPECT_EQ(list->view().extent_count, 1U);
  EXPECT_EQ(list->view().blocks, 1000U);
  EXPECT_EQ(list->view().block_length, 4096U);
  EXPECT_EQ(list->view().blocks_per_extent, 1000U);
  EXPECT_EQ(list->bytes(), 4096000U);
  EXPECT_EQ(list->regions().size(), 1U);
  EXPECT_FALSE(list->overlaps());
}

TEST(ResolvedList, joins_dimensions_that_go_on_in_one_another) {
  const auto list = ResolvedList::from_blocks(
      std::vector{entry(kBase, 64, {{3, 100000}, {1, 7}, {10, 640}, {10, 64}})}, one_region());
  EXPECT_EQ(list->view().extents[0].dimensions, 2U);
  EXPECT_EQ(list->view().extents[0].count[1], 100U);
  EXPECT_EQ(blocks_of(*list), expand({entry(kBase, 64, {{3, 100000}, {100, 64}})}));
}

TEST(ResolvedList, means_the_same_blocks_as_the_entries_wherever_regions_begin_and_end) {
  for (uint64_t seed = 0; seed < 500; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    std::vector<towline_blocks_t> entries;
    for (uint64_t e = random.between(1, 5); e > 0; --e) {
      std::vector<std::pair<uint64_t, uint64_t>> dimensions;
      for (uint64_t d = random.between(0, 4); d > 0; --d)
        dimensions.emplace_back(random.between(1, 5), random.below(200));
      entries.push_back(entry(kBase + random.below(5000), random.between(1, 30), dimensions));
    }
    const std::vector<Block> expected = expand(entries);
    // Regions that overlap by more than a block, so that some hulls fit and some do not.
    std::vector<towline_region_ref> regions;
    const uint64_t bytes = random.between(61, 3000);
    for (uint64_t at = kBase; at < kBase + 20000; at += bytes - 30)
      regions.push_back(region(regions.size() + 1, at, bytes, random.chance(0.8) ? 3 : 1));
    std::shuffle(regions.begin(), regions.end(), random);
    const RegionIndex index(regions);
    uint64_t all_bytes = 0;
    for (const Block& block : expected) all_bytes += block.length;
    for (const auto& list :
         {ResolvedList::from_blocks(entries, index), ResolvedList::from_flat(flat_of(expected), index)}) {
      ASSERT_EQ(blocks_of(*list), expected);
      ASSERT_EQ(list->bytes(), all_bytes);
      plugin::detail::ListReader reader(list->view());
      for (uint64_t i = 0; i < list->blocks(); ++i) {
        const auto row = reader.row(i, 1);
        const towline_region_ref& lies_in = list->regions()[row.region];
        ASSERT_GE(row.address, lies_in.address);
        ASSERT_LE(row.address + row.length, lies_in.address + lies_in.bytes);
      }
    }
  }
}

TEST(ResolvedList, reads_flat_input_with_strides_and_finds_its_regularity) {
  std::vector<uint64_t> rows;  // N x 3, as an application may have them
  for (uint64_t i = 0; i < 1000; ++i) {
    rows.push_back(kBase + i * 8192);
    rows.push_back(4096);
    rows.push_back(77);
  }
  FlatBlocks flat;
  flat.count = 1000;
  flat.addresses = rows.data();
  flat.address_stride_bytes = 24;
  flat.lengths = rows.data() + 1;
  flat.length_stride_bytes = 24;
  const auto list = ResolvedList::from_flat(flat, one_region());
  EXPECT_EQ(list->view().extent_count, 1U);
  EXPECT_EQ(list->view().flat, nullptr);
  EXPECT_EQ(list->view().extents[0].stride[0], 8192U);
  const uint64_t length = 4096;
  flat.lengths = &length;
  flat.length_stride_bytes = 0;
  EXPECT_EQ(blocks_of(*ResolvedList::from_flat(flat, one_region())), blocks_of(*list));
  // Eighty layers.
  for (uint64_t i = 0; i < 1000; ++i) rows[3 * i] = kBase + i / 100 * (1 << 30) + i % 100 * 4096;
  flat.lengths = rows.data() + 1;
  flat.length_stride_bytes = 24;
  const auto layers = ResolvedList::from_flat(flat, one_region());
  EXPECT_EQ(layers->view().extent_count, 10U);
  EXPECT_EQ(layers->view().blocks_per_extent, 100U);
}

TEST(ResolvedList, keeps_irregular_flat_input_in_sixteen_bytes_a_block) {
  Random random(1);
  std::vector<Block> blocks;
  for (uint64_t i = 0; i < 1000; ++i) blocks.push_back({kBase + i * 4096, 4096});
  std::shuffle(blocks.begin(), blocks.end(), random);
  const auto list = ResolvedList::from_flat(flat_of(blocks), one_region());
  ASSERT_NE(list->view().flat, nullptr);
  EXPECT_EQ(list->view().extents, nullptr);
  EXPECT_EQ(sizeof(list->view().flat[0]), 16U);
  EXPECT_EQ(list->view().block_length, 4096U);
  EXPECT_FALSE(list->overlaps());
  std::vector<towline_blocks_t> entries;
  for (const Block& block : blocks) entries.push_back(entry(block.address, block.length));
  EXPECT_NE(ResolvedList::from_blocks(entries, one_region())->view().flat, nullptr);
}

TEST(ResolvedList, takes_blocks_of_four_gibibytes_and_more) {
  const RegionIndex index(std::vector{region(1, kBase, uint64_t{1} << 50)});
  const uint64_t big = uint64_t{5} << 30;
  const std::vector<Block> blocks = {
      {kBase + 3 * big, big}, {kBase, big}, {kBase + big, big}, {kBase + 7 * big, 5}};
  const auto list = ResolvedList::from_flat(flat_of(blocks), index);
  EXPECT_EQ(list->view().flat, nullptr);
  EXPECT_EQ(blocks_of(*list), blocks);
}

TEST(ResolvedList, resolves_to_the_region_with_the_most_rights) {
  const RegionIndex index(std::vector{region(1, kBase, 1000, 1), region(2, kBase + 500, 1000, 3),
                                      region(3, kBase + 500, 1000, 2)});
  const std::vector<Block> blocks = {{kBase, 10}, {kBase + 600, 10}, {kBase + 490, 20}, {kBase + 700, 9}};
  const auto list = ResolvedList::from_flat(flat_of(blocks), index);
  std::vector<uint64_t> keys;
  plugin::detail::ListReader reader(list->view());
  for (uint64_t i = 0; i < 4; ++i) keys.push_back(list->regions()[reader.row(i, 1).region].key);
  EXPECT_EQ(keys, (std::vector<uint64_t>{1, 2, 1, 2}));
  EXPECT_EQ(list->common_access(), 1U);
}

TEST(ResolvedList, names_the_first_entry_that_is_wrong) {
  const RegionIndex index = one_region();
  const towline_blocks_t good = entry(kBase, 16, {{4, 16}});
  towline_blocks_t bad = good;
  expect_refused({}, index, Status::kInvalidArgument, "at least one");
  bad.length = 0;
  expect_refused({good, bad, bad}, index, Status::kInvalidArgument, "entry 1 ");
  bad = good;
  bad.kind = 5;
  expect_refused({good, bad}, index, Status::kInvalidArgument, "entry 1 has memory kind 5");
  bad = good;
  bad.dimensions = 5;
  expect_refused({good, good, bad}, index, Status::kInvalidArgument, "entry 2 has 5 dimensions");
  bad = good;
  bad.count[0] = 0;
  expect_refused({bad}, index, Status::kInvalidArgument, "entry 0 has count 0 in dimension 0");
  bad.count[0] = uint64_t{1} << 32;
  bad.stride[0] = 0;
  expect_refused({bad}, index, Status::kLimitExceeded, "entry 0 has more than");
  bad = entry(kBase, 1, {{1 << 20, 0}, {1 << 20, 0}});
  expect_refused({good, bad}, index, Status::kLimitExceeded, "entry 1 has more than");
  bad = entry(kBase, 1, {{UINT64_MAX, 0}, {UINT64_MAX, 0}});
  expect_refused({bad}, index, Status::kLimitExceeded, "entry 0");
  const towline_blocks_t many = entry(kBase, 1, {{3000000000, 0}});
  expect_refused({many, many}, index, Status::kLimitExceeded, "entries 0 to 1");
  expect_refused({good, entry(kBase + kSpan - 16, 16, {{2, 16}})}, index, Status::kOutOfRange,
                 "block 1 of entry 1");
  expect_refused({good, entry(kBase - 1, 16)}, index, Status::kOutOfRange, "block 0 of entry 1");
  bad = good;
  bad.kind = TOWLINE_MEMORY_VRAM;
  expect_refused(
      {bad}, index, Status::kOutOfRange,
      "of vram on device 0, lies in no registered region: no region of vram on device 0 is registered");
  bad = good;
  bad.device = 3;
  expect_refused({bad}, index, Status::kOutOfRange, "device 3");
}

TEST(ResolvedList, is_not_fooled_by_values_near_the_end_of_numbers) {
  const RegionIndex index = one_region();
  for (const uint64_t huge : {uint64_t{1} << 62, uint64_t{1} << 63, UINT64_MAX - 15, UINT64_MAX}) {
    expect_refused({entry(kBase, huge)}, index, Status::kOutOfRange, "ntry 0");
    expect_refused({entry(huge, 16)}, index, Status::kOutOfRange, "ntry 0");
    expect_refused({entry(kBase, 16, {{2, huge}})}, index, Status::kOutOfRange, "ntry 0");
    expect_refused({entry(kBase, 16, {{1000, huge / 500}, {3, huge / 2}})}, index, Status::kOutOfRange,
                   "ntry 0");
    const std::vector<Block> long_block = {{kBase, 16}, {kBase + 64, huge}};
    EXPECT_EQ(error_of([&] { (void)ResolvedList::from_flat(flat_of(long_block), index); }).first,
              Status::kOutOfRange);
    const std::vector<Block> far_block = {{kBase, 16}, {huge, 16}};
    EXPECT_EQ(error_of([&] { (void)ResolvedList::from_flat(flat_of(far_block), index); }).first,
              Status::kOutOfRange);
  }
}

TEST(ResolvedList, refuses_flat_input_that_makes_no_sense) {
  const RegionIndex index = one_region();
  std::vector<Block> blocks = {{kBase, 16}, {kBase + 100, 0}, {kBase - 50, 16}};
  FlatBlocks flat = flat_of(blocks);
  const auto refusal = [&] { return error_of([&] { (void)ResolvedList::from_flat(flat, index); }); };
  EXPECT_EQ(refusal().first, Status::kInvalidArgument);
  EXPECT_NE(refusal().second.find("entry 1 "), std::string::npos) << refusal().second;
  blocks[1].length = 5;
  EXPECT_EQ(refusal().first, Status::kOutOfRange);
  EXPECT_NE(refusal().second.find("block 0 of entry 2"), std::string::npos) << refusal().second;
  flat.kind = 9;
  EXPECT_EQ(refusal().first, Status::kInvalidArgument);
  flat.kind = 0;
  flat.count = 0;
  EXPECT_EQ(refusal().first, Status::kInvalidArgument);
  flat.count = kMaxFlatBlocks + 1;
  EXPECT_EQ(refusal().first, Status::kLimitExceeded);
  flat.count = 3;
  flat.lengths = nullptr;
  EXPECT_EQ(refusal().first, Status::kInvalidArgument);
  EXPECT_NE(refusal().second.find("lengths is null"), std::string::npos) << refusal().second;
}

TEST(ResolvedList, notices_overlap_exactly) {
  const RegionIndex index = one_region();
  const auto overlaps = [&](const std::vector<towline_blocks_t>& entries) {
    return ResolvedList::from_blocks(entries, index)->overlaps();
  };
  EXPECT_FALSE(overlaps({entry(kBase, 16, {{10, 16}})}));
  EXPECT_TRUE(overlaps({entry(kBase, 16, {{10, 15}})}));
  EXPECT_TRUE(overlaps({entry(kBase, 16, {{10, 0}})}));
  EXPECT_FALSE(overlaps({entry(kBase, 16, {{10, 15}, {1, 3}}), entry(kBase + 1000, 1)}) &&
               !overlaps({entry(kBase, 16, {{10, 15}})}));
  // The outer stride falls between the inner blocks.
  EXPECT_FALSE(overlaps({entry(kBase, 16, {{2, 16}, {10, 32}})}));
  EXPECT_TRUE(overlaps({entry(kBase, 16, {{3, 16}, {10, 32}})}));
  // Keys and values in turn; then the same shifted into one another.
  EXPECT_FALSE(overlaps({entry(kBase, 16, {{100, 32}}), entry(kBase + 16, 16, {{100, 32}})}));
  EXPECT_TRUE(overlaps({entry(kBase, 16, {{100, 32}}), entry(kBase + 15, 16, {{100, 32}})}));
  EXPECT_TRUE(overlaps({entry(kBase, 16, {{100, 32}}), entry(kBase + 17, 16, {{100, 32}})}));
  EXPECT_TRUE(overlaps({entry(kBase, 16), entry(kBase + 100, 16), entry(kBase + 8, 4)}));
}

TEST(ResolvedList, notices_overlap_as_a_look_at_all_pairs_would) {
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    std::vector<towline_blocks_t> entries;
    const uint64_t grain = random.chance(0.5) ? 8 : 1;
    for (uint64_t e = random.between(1, 4); e > 0; --e) {
      std::vector<std::pair<uint64_t, uint64_t>> dimensions;
      for (uint64_t d = random.between(0, 3); d > 0; --d)
        dimensions.emplace_back(random.between(1, 4), grain * random.below(30));
      entries.push_back(entry(kBase + grain * random.below(300), grain * random.between(1, 6), dimensions));
    }
    const std::vector<Block> blocks = expand(entries);
    bool expected = false;
    for (size_t a = 0; a < blocks.size(); ++a)
      for (size_t b = 0; b < a; ++b)
        expected = expected || (blocks[a].address < blocks[b].address + blocks[b].length &&
                                blocks[b].address < blocks[a].address + blocks[a].length);
    ASSERT_EQ(ResolvedList::from_blocks(entries, one_region())->overlaps(), expected);
    ASSERT_EQ(ResolvedList::from_flat(flat_of(blocks), one_region())->overlaps(), expected);
  }
}

TEST(ResolvedList, notices_the_one_page_among_shuffled_ones_that_overlaps) {
  Random random(11);
  for (const uint64_t distance : {uint64_t{4096}, uint64_t{4096} << 14, uint64_t{5000}}) {
    SCOPED_TRACE(distance);
    std::vector<Block> pages;
    for (uint64_t i = 0; i < 3000; ++i) pages.push_back({kBase + i * distance, 4096});
    for (size_t i = pages.size(); i > 1; --i) std::swap(pages[i - 1], pages[random.below(i)]);
    EXPECT_FALSE(ResolvedList::from_flat(flat_of(pages), one_region())->overlaps());
    for (const uint64_t shift : {0, 1, 4095}) {
      std::vector<Block> once_more = pages;
      once_more[1500].address = pages[7].address + shift;
      EXPECT_TRUE(ResolvedList::from_flat(flat_of(once_more), one_region())->overlaps()) << shift;
    }
    std::vector<Block> longer = pages;
    longer[1500].length = distance + 1;  // into its neighbour, unless that is far
    longer[1500].address = std::min(longer[1500].address, kBase + 2998 * distance);
    EXPECT_TRUE(ResolvedList::from_flat(flat_of(longer), one_region())->overlaps());
  }
}

TEST(ResolvedList, tells_overlap_apart_by_address_space) {
  std::vector<towline_region_ref> regions = {region(1, kBase, 4096), region(2, kBase, 4096)};
  regions[1].kind = TOWLINE_MEMORY_VRAM;
  std::vector<towline_blocks_t> entries = {entry(kBase, 64), entry(kBase, 64)};
  const RegionIndex index(regions);
  EXPECT_TRUE(ResolvedList::from_blocks(entries, index)->overlaps());
  entries[1].kind = TOWLINE_MEMORY_VRAM;
  EXPECT_FALSE(ResolvedList::from_blocks(entries, index)->overlaps());
}

TEST(ResolvedList, cuts_blocks_into_pieces_of_the_same_memory) {
  const RegionIndex index = one_region();
  const auto whole = ResolvedList::from_blocks(
      std::vector{entry(kBase, 64, {{2, 5000}, {2, 2000}, {2, 700}, {3, 100}})}, index);
  const ResolvedList* const cut = &whole->cut(4);
  EXPECT_EQ(cut, &whole->cut(4));
  EXPECT_EQ(cut->view().extents[0].dimensions, 5U);
  const auto blocks = blocks_of(*whole);
  const auto pieces = blocks_of(*cut);
  ASSERT_EQ(pieces.size(), 4 * blocks.size());
  for (size_t i = 0; i < pieces.size(); ++i)
    ASSERT_EQ(pieces[i], (Block{blocks[i / 4].address + i % 4 * 16, 16}));
  const auto contiguous = ResolvedList::from_blocks(std::vector{entry(kBase, 64, {{10, 64}})}, index);
  EXPECT_EQ(contiguous->cut(8).view().extents[0].dimensions, 1U);
  EXPECT_EQ(
      error_of([&] {
        (void)ResolvedList::from_blocks(std::vector{entry(kBase, 64, {{100000000, 64}})}, index)->cut(64);
      }).first,
      Status::kLimitExceeded);
}

}  // namespace
}  // namespace towline
