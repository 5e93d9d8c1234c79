#include "memory/region_index.h"

#include <gtest/gtest.h>
#include <towline/towline.h>

#include <algorithm>
#include <tuple>
#include <vector>

#include "base/error.h"
#include "base/random.h"

namespace towline {
namespace {

towline_region_ref region(uint64_t key, uint64_t address, uint64_t bytes, uint32_t access = 3,
                          uint32_t flags = 0) {
  return {key, address, bytes, 0, TOWLINE_MEMORY_DRAM, access, flags, 0};
}

uint64_t find_key(const RegionIndex& index, uint64_t address, uint64_t bytes, uint32_t preferred = 3) {
  const towline_region_ref* found = index.find(TOWLINE_MEMORY_DRAM, 0, address, bytes, preferred);
  return found == nullptr ? 0 : found->key;
}

Status refusal(const towline_region_ref& refused) {
  try {
    validate_region(refused, "region");
  } catch (const Error& error) {
    EXPECT_FALSE(error.message().empty());
    return error.code();
  }
  return Status::kOk;
}

// The same choice by looking at all of them.
uint64_t plain_choice(const std::vector<towline_region_ref>& regions, uint64_t address, uint64_t bytes,
                      uint32_t preferred) {
  const auto rank = [&](const towline_region_ref& one) {
    const uint32_t rights = one.access == 3 ? 3 : one.access == preferred ? 2 : one.access == 1 ? 1 : 0;
    const uint32_t unguarded = (one.flags & TOWLINE_REGION_GUARDED) == 0 ? 1 : 0;
    return std::tuple(rights, unguarded, one.address);
  };
  const towline_region_ref* best = nullptr;
  for (const towline_region_ref& one : regions) {
    if (one.address > address || one.address + one.bytes < address + bytes) continue;
    const bool hidden = std::any_of(regions.begin(), regions.end(), [&](const towline_region_ref& other) {
      if (other.access != one.access || other.flags != one.flags || other.key == one.key) return false;
      if (other.address > one.address || other.address + other.bytes < one.address + one.bytes) return false;
      return other.address != one.address || other.bytes != one.bytes || other.key < one.key;
    });
    if (!hidden && (best == nullptr || rank(one) > rank(*best))) best = &one;
  }
  return best == nullptr ? 0 : best->key;
}

TEST(RegionIndex, finds_a_region_that_covers_the_whole_range) {
  RegionIndex index(std::vector{region(1, 1000, 100), region(2, 1100, 100)});
  EXPECT_EQ(find_key(index, 1000, 100), 1U);
  EXPECT_EQ(find_key(index, 1100, 1), 2U);
  EXPECT_EQ(find_key(index, 1050, 100), 0U);  // neighbours do not add up
  EXPECT_EQ(find_key(index, 999, 1), 0U);
  EXPECT_EQ(find_key(index, 1200, 1), 0U);
  EXPECT_EQ(index.find(TOWLINE_MEMORY_VRAM, 0, 1000, 1), nullptr);
  EXPECT_EQ(index.find(TOWLINE_MEMORY_DRAM, 1, 1000, 1), nullptr);
}

TEST(RegionIndex, is_not_fooled_by_values_near_the_end_of_numbers) {
  RegionIndex index(std::vector{region(1, 1000, 100)});
  EXPECT_EQ(find_key(index, 1000, UINT64_MAX), 0U);
  EXPECT_EQ(find_key(index, 1050, UINT64_MAX - 49), 0U);
  EXPECT_EQ(find_key(index, UINT64_MAX, UINT64_MAX), 0U);
  EXPECT_EQ(find_key(index, UINT64_MAX, 1), 0U);
  EXPECT_EQ(find_key(index, 0, UINT64_MAX), 0U);
}

TEST(RegionIndex, prefers_rights_then_unguarded_whatever_the_order) {
  const std::vector<towline_region_ref> regions = {region(1, 0x1000, 0x1000, 1), region(2, 0x1000, 0x1000, 2),
                                                   region(3, 0x1000, 0x1000, 3, TOWLINE_REGION_GUARDED)};
  RegionIndex index(regions);
  EXPECT_EQ(find_key(index, 0x1800, 16), 3U);
  EXPECT_FALSE(index.one_class(TOWLINE_MEMORY_DRAM, 0));
  EXPECT_TRUE(index.erase(3));
  EXPECT_EQ(find_key(index, 0x1800, 16, TOWLINE_ACCESS_READ), 1U);
  EXPECT_EQ(find_key(index, 0x1800, 16, TOWLINE_ACCESS_WRITE), 2U);
  EXPECT_FALSE(index.erase(3));
  EXPECT_TRUE(index.erase(2));
  EXPECT_TRUE(index.one_class(TOWLINE_MEMORY_DRAM, 0));
}

TEST(RegionIndex, chooses_as_a_look_at_all_regions_would) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    RegionIndex index;
    std::vector<towline_region_ref> regions;
    uint64_t next_key = 1;
    const uint64_t span = random.between(5, 200);
    for (int step = 0; step < 200; ++step) {
      if (regions.empty() || random.chance(0.6)) {
        const uint64_t bytes = random.chance(0.2) ? span : random.between(1, 20);
        regions.push_back(region(next_key++, 1 + random.below(span), bytes,
                                 random.chance(0.5) ? 3 : static_cast<uint32_t>(random.between(1, 3)),
                                 random.chance(0.3) ? TOWLINE_REGION_GUARDED : 0));
        index.insert(regions.back());
      } else {
        const size_t gone = random.below(regions.size());
        ASSERT_TRUE(index.erase(regions[gone].key));
        regions.erase(regions.begin() + static_cast<ptrdiff_t>(gone));
      }
      ASSERT_EQ(index.size(), regions.size());
      for (int look = 0; look < 5; ++look) {
        const uint64_t address = random.below(span + 20);
        const uint64_t bytes = random.between(1, 20);
        const auto preferred = static_cast<uint32_t>(random.between(1, 3));
        ASSERT_EQ(find_key(index, address, bytes, preferred),
                  plain_choice(regions, address, bytes, preferred))
            << address << " + " << bytes;
      }
    }
  }
}

TEST(RegionIndex, holds_a_hundred_thousand_regions_under_and_beside_one_another) {
  RegionIndex index;
  constexpr uint64_t kCount = 100'000;
  for (uint64_t i = 0; i < kCount; ++i) index.insert(region(i + 1, (i + 1) << 20, 1 << 20));
  index.insert(region(kCount + 1, 1, uint64_t{1} << 50));
  for (uint64_t i = 0; i < kCount; i += 7) EXPECT_EQ(find_key(index, ((i + 1) << 20) + 5, 100), kCount + 1);
  EXPECT_TRUE(index.erase(kCount + 1));
  for (uint64_t i = 0; i < kCount; i += 7) EXPECT_EQ(find_key(index, ((i + 1) << 20) + 5, 100), i + 1);
  for (uint64_t i = 0; i < kCount; ++i) EXPECT_TRUE(index.erase(i + 1));
  EXPECT_EQ(index.size(), 0U);
}

TEST(RegionIndex, refuses_regions_that_make_no_sense) {
  EXPECT_EQ(refusal(region(1, 1000, 100)), Status::kOk);
  EXPECT_EQ(refusal(region(1, 1000, 0)), Status::kInvalidArgument);
  EXPECT_EQ(refusal(region(1, 0, 100)), Status::kInvalidArgument);
  EXPECT_EQ(refusal(region(1, 1000, uint64_t{1} << 63)), Status::kOutOfRange);
  EXPECT_EQ(refusal(region(1, 1000, UINT64_MAX)), Status::kOutOfRange);
  EXPECT_EQ(refusal(region(1, UINT64_MAX, 2)), Status::kOutOfRange);
  EXPECT_EQ(refusal(region(1, uint64_t{1} << 63, 1)), Status::kOutOfRange);
  EXPECT_EQ(refusal(region(1, (uint64_t{1} << 63) - 10, 10)), Status::kOk);
  EXPECT_EQ(refusal(region(1, 1000, 1, 4)), Status::kInvalidArgument);
  EXPECT_EQ(refusal(region(1, 1000, 1, TOWLINE_ACCESS_NONE)), Status::kOk);
  EXPECT_EQ(refusal(region(1, 1000, 1, 3, 1U << 31)), Status::kInvalidArgument);
  towline_region_ref odd = region(1, 1000, 1);
  odd.kind = 5;
  EXPECT_EQ(refusal(odd), Status::kInvalidArgument);
  odd = region(1, 1000, 1);
  odd.device = 1;
  EXPECT_EQ(refusal(odd), Status::kInvalidArgument);
  odd.kind = TOWLINE_MEMORY_FILE;
  odd.address = 0;
  EXPECT_EQ(refusal(odd), Status::kOk);
  EXPECT_THROW(RegionIndex(std::vector{region(1, 1000, 1), region(1, 2000, 1)}), Error);
}

TEST(RegionIndex, says_what_lies_near) {
  RegionIndex index(std::vector{region(1, 0x1000, 0x100), region(2, 0x3000, 0x100)});
  const std::string near = index.describe_near(TOWLINE_MEMORY_DRAM, 0, 0x2000);
  EXPECT_NE(near.find("[0x1000, 0x1100)"), std::string::npos) << near;
  EXPECT_NE(near.find("[0x3000, 0x3100)"), std::string::npos) << near;
  EXPECT_NE(index.describe_near(TOWLINE_MEMORY_VRAM, 0, 0x2000).find("no region"), std::string::npos);
  EXPECT_FALSE(index.describe_near(TOWLINE_MEMORY_DRAM, 0, 0).empty());
  EXPECT_FALSE(index.describe_near(TOWLINE_MEMORY_DRAM, 0, UINT64_MAX).empty());
}

}  // namespace
}  // namespace towline
