#include "plan/staged_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

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
void expect_staged(const Plan& whole, uint32_t op, uint64_t chunk, uint32_t slots) {
  const towline_region_ref memory_region = region(7, kMemory - 64, 64 + chunk * slots);
  const std::vector<StagedColumn> staged = stage_plan(whole, op, {memory_region, kMemory, chunk, slots});
  ASSERT_EQ(staged.size(), slots);
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
    const uint64_t column = i / chunk % slots;
    const uint64_t in_column = i / chunk / slots * chunk + i % chunk;
    const uint64_t memory = kMemory + i / chunk % slots * chunk + i % chunk;
    ASSERT_EQ(near[column].at(in_column), (Byte{memory, expected[i].local})) << i;
    ASSERT_EQ(far[column].at(in_column), (Byte{memory, expected[i].remote})) << i;
  }
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
  const towline_region_ref memory_region = region(7, kMemory, 1 << 20);
  const auto staged = stage_plan(whole, TOWLINE_READ, {memory_region, kMemory, 10'000, 2});
  EXPECT_EQ(staged[0].near.plan.view().blocks, 5u);
  EXPECT_EQ(staged[0].far.plan.view().blocks, 50u);
}

// Shuffled picks of two objects: the chunks follow the objects' bytes, and every byte still goes where it
// belongs.
TEST(StagedObjects, are_written_from_front_to_back) {
  constexpr uint64_t kChunk = 4096;
  constexpr uint32_t kSlots = 3;
  const auto local = make_list(kLocal, {entry(kLocal + (1 << 20) - 6000, 3000, {{50, 3000}})});
  const auto remote = make_list(kRemote, {entry(kRemote, 1000, {{150, 1500}})});
  std::vector<uint32_t> ours(40);
  std::vector<uint32_t> theirs(120);
  for (uint32_t i = 0; i < 40; ++i) ours[i] = (i * 7) % 50;
  for (uint32_t i = 0; i < 120; ++i) theirs[i] = (i * 11) % 150;
  const towline_picks_t from = pick_indices(ours);
  const towline_picks_t to = pick_indices(theirs);
  for (const uint32_t op : {TOWLINE_READ, TOWLINE_WRITE}) {
    SCOPED_TRACE(op);
    const bool far_written = op == TOWLINE_WRITE;
    const Plan whole = Plan::compile(*local, &from, *remote, &to, op);
    const towline_region_ref memory_region = region(7, kMemory, kChunk * kSlots);
    const StagedObjects staged = stage_objects(whole, op, {memory_region, kMemory, kChunk, kSlots});
    ASSERT_EQ(staged.columns.size(), kSlots);
    plugin::Cursor all(whole.view());
    std::map<uint64_t, std::pair<uint64_t, uint64_t>> source_of;  // of an object's byte, and its position
    uint64_t position = 0;
    for (const Byte& byte : bytes_of(walk(all)))
      source_of[far_written ? byte.remote : byte.local] = {far_written ? byte.local : byte.remote,
                                                           position++};
    uint64_t begin = 0;
    uint64_t last = 0;
    ASSERT_EQ(staged.objects.size(), far_written ? 1u : 2u);
    EXPECT_EQ(staged.objects.back().end, whole.bytes());
    for (const StagedColumn& column : staged.columns) {
      const StagedLeg& written = far_written ? column.far : column.near;
      ASSERT_EQ(written.plan.bytes(), whole.bytes()) << "what is written is known by its whole plan";
    }
    std::vector<std::vector<Byte>> filled;
    for (const StagedColumn& column : staged.columns) {
      plugin::Cursor cursor((far_written ? column.near : column.far).plan.view());
      filled.push_back(bytes_of(walk(cursor)));
    }
    plugin::Cursor written((far_written ? staged.columns[1].far : staged.columns[1].near).plan.view());
    size_t object = 0;
    for (const Byte& byte : bytes_of(walk(written))) {  // local: the memory, remote: the object
      const uint64_t chunk = begin / kChunk;
      ASSERT_EQ(byte.local, kMemory + chunk % kSlots * kChunk + begin % kChunk);
      ASSERT_TRUE(begin == 0 || byte.remote > last) << begin;
      const Byte& fill = filled[chunk % kSlots].at(chunk / kSlots * kChunk + begin % kChunk);
      const auto& [source, in_plan] = source_of.at(byte.remote);
      ASSERT_EQ(fill, (Byte{byte.local, source})) << begin;
      if (begin == staged.objects[object].end) ++object;
      ASSERT_GE(in_plan, staged.objects[object].plan_begin);
      ASSERT_LT(in_plan, staged.objects[object].plan_end);
      last = byte.remote;
      ++begin;
    }
    EXPECT_EQ(begin, whole.bytes());
  }
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
  const auto [status, text] = error_of([&] {
    (void)stage_plan(whole, TOWLINE_READ, {region(7, kMemory, 4096), kMemory, 4096, 1});
  });
  EXPECT_EQ(status, Status::kPermissionDenied) << text;
}

}  // namespace
}  // namespace towline
