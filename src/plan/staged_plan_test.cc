#include "plan/staged_plan.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "plan/plan_test_support.h"

namespace towline {
namespace {

using testing::Byte;
using testing::bytes_of;
using testing::entry;
using testing::error_of;
using testing::pick_indices;
using testing::region;
using testing::walk;

constexpr uint64_t kLocal = 0x100000;
constexpr uint64_t kRemote = 0x9000000;
constexpr uint64_t kMemory = 0x40000000;

std::shared_ptr<const ResolvedList> make_list(uint64_t base, const std::vector<towline_blocks_t>& entries,
                                              uint32_t access = 3) {
  return ResolvedList::from_blocks(entries,
                                   RegionIndex(std::vector{region(base, base, 1 << 20, access),
                                                           region(base + 1, base + (1 << 20), 1 << 20)}));
}

// Every byte goes through the slot and chunk that it should, at one place in the memory for both legs.
void expect_staged(const Plan& whole, uint32_t op, uint64_t chunk, uint32_t slots, uint64_t columns) {
  const std::vector<StagedColumn> staged =
      stage_plan(whole, op, region(7, kMemory - 64, 64 + chunk * slots), kMemory, chunk, slots, columns);
  ASSERT_EQ(staged.size(), columns);
  plugin::Cursor all(whole.view());
  const std::vector<Byte> expected = bytes_of(walk(all));
  std::vector<std::vector<Byte>> near;
  std::vector<std::vector<Byte>> far;
  for (const StagedColumn& column : staged) {
    plugin::Cursor near_cursor(column.near.plan.view());
    plugin::Cursor far_cursor(column.far.plan.view());
    near.push_back(bytes_of(walk(near_cursor)));
    far.push_back(bytes_of(walk(far_cursor)));
    EXPECT_EQ(near.back().size(), far.back().size());
  }
  for (uint64_t i = 0; i < expected.size(); ++i) {
    const uint64_t column = i / chunk % columns;
    const uint64_t in_column = i / chunk / columns * chunk + i % chunk;
    const uint64_t memory = kMemory + i / chunk % slots * chunk + i % chunk;
    ASSERT_EQ(near[column].at(in_column), (Byte{memory, expected[i].local})) << i;
    ASSERT_EQ(far[column].at(in_column), (Byte{memory, expected[i].remote})) << i;
  }
}
void expect_staged(const Plan& whole, uint32_t op, uint64_t chunk, uint32_t slots) {
  expect_staged(whole, op, chunk, slots, slots);
  expect_staged(whole, op, chunk, slots, (whole.bytes() + chunk - 1) / chunk);
}

TEST(StagedPlan, sends_every_byte_through_its_chunk) {
  const auto local = make_list(kLocal, {entry(kLocal + 4096, 1000, {{100, 3000}})});
  const auto remote = make_list(kRemote, {entry(kRemote, 1000, {{10, 20000}, {10, 1000}})});
  for (const uint64_t chunk : {4096, 1000, 333, 65536}) {
    for (uint32_t slots = 1; slots <= std::min<uint64_t>(4, (100'000 + chunk - 1) / chunk); ++slots) {
      expect_staged(Plan::compile(*local, nullptr, *remote, nullptr, TOWLINE_READ), TOWLINE_READ, chunk,
                    slots);
      expect_staged(Plan::compile(*local, nullptr, *remote, nullptr, TOWLINE_WRITE), TOWLINE_WRITE, chunk,
                    slots);
    }
  }
}

TEST(StagedPlan, follows_picks_unequal_blocks_and_regions) {
  const auto local = make_list(kLocal, {entry(kLocal + (1 << 20) - 6000, 3000, {{50, 3000}})});
  const auto remote = make_list(kRemote, {entry(kRemote, 1000, {{150, 1500}})});
  std::vector<uint32_t> ours(40);
  std::vector<uint32_t> theirs(120);
  for (uint32_t i = 0; i < 40; ++i) ours[i] = (i * 7) % 50;
  for (uint32_t i = 0; i < 120; ++i) theirs[i] = (i * 11) % 150;
  const towline_picks_t from = pick_indices(ours);
  const towline_picks_t to = pick_indices(theirs);
  expect_staged(Plan::compile(*local, &from, *remote, &to, TOWLINE_WRITE), TOWLINE_WRITE, 4096, 3);
}

TEST(StagedPlan, joins_what_is_contiguous_on_one_side) {
  const auto local = make_list(kLocal, {entry(kLocal, 1000, {{100, 1000}})});
  const auto remote = make_list(kRemote, {entry(kRemote, 1000, {{100, 2000}})});
  const Plan whole = Plan::compile(*local, nullptr, *remote, nullptr, TOWLINE_READ);
  const auto staged = stage_plan(whole, TOWLINE_READ, region(7, kMemory, 1 << 20), kMemory, 10'000, 2, 2);
  EXPECT_EQ(staged[0].near.plan.view().blocks, 5u);
  EXPECT_EQ(staged[0].far.plan.view().blocks, 50u);
}

TEST(StraightPlan, pairs_the_sides_where_the_remote_one_lies_here) {
  constexpr uint64_t kHere = 0x70000000;
  const auto local = make_list(kLocal, {entry(kLocal + (1 << 20) - 6000, 3000, {{50, 3000}})});
  const auto remote = make_list(kRemote, {entry(kRemote + (1 << 20) - 6000, 1000, {{150, 1500}})});
  const Plan whole = Plan::compile(*local, nullptr, *remote, nullptr, TOWLINE_WRITE);
  std::vector<towline_region_ref> here(remote->regions().begin(), remote->regions().end());
  ASSERT_EQ(here.size(), 2u);
  here[0].address = kHere;
  here[1].address = 3 * kHere;
  const StagedLeg leg = straight_plan(whole, TOWLINE_WRITE, here);
  plugin::Cursor straight(leg.plan.view());
  plugin::Cursor all(whole.view());
  const std::vector<Byte> found = bytes_of(walk(straight));
  const std::vector<Byte> expected = bytes_of(walk(all));
  ASSERT_EQ(found.size(), expected.size());
  for (uint64_t i = 0; i < expected.size(); ++i) {
    const bool second = expected[i].remote >= kRemote + (1 << 20);
    const uint64_t begin = second ? kRemote + (1 << 20) : kRemote;
    ASSERT_EQ(found[i], (Byte{expected[i].remote - begin + (second ? 3 * kHere : kHere), expected[i].local}))
        << i;
  }
}

TEST(StagedPlan, keeps_access_rights) {
  const auto local = make_list(kLocal, {entry(kLocal, 1000)}, TOWLINE_ACCESS_READ);
  const auto remote = make_list(kRemote, {entry(kRemote, 1000)});
  const Plan whole = Plan::compile(*local, nullptr, *remote, nullptr, TOWLINE_READ);
  const auto [status, text] =
      error_of([&] { (void)stage_plan(whole, TOWLINE_READ, region(7, kMemory, 4096), kMemory, 4096, 1, 1); });
  EXPECT_EQ(status, Status::kPermissionDenied) << text;
}

}  // namespace
}  // namespace towline
