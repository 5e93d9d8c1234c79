#include "plan/plan.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "plan/plan_test_support.h"

namespace towline {
namespace {

using testing::entry;
using testing::error_of;
using testing::kBase;
using testing::kSpan;
using testing::pick_indices;
using testing::pick_range;
using testing::region;
using testing::walk;

using List = std::shared_ptr<const ResolvedList>;

List make_list(const std::vector<towline_blocks_t>& entries, uint32_t access = 3) {
  return ResolvedList::from_blocks(entries, RegionIndex(std::vector{region(1, kBase, kSpan, access)}));
}
List pages(uint64_t count, uint64_t length, uint64_t address = kBase) {
  return make_list({entry(address, length, {{count, length * 2}})});
}

void expect_refused(const List& local, const towline_picks_t& local_picks, const List& remote,
                    const towline_picks_t& remote_picks, uint32_t op, Status code, const std::string& part) {
  const auto [status, text] =
      error_of([&] { (void)Plan::compile(*local, &local_picks, *remote, &remote_picks, op); });
  EXPECT_EQ(status, code) << text;
  EXPECT_NE(text.find(part), std::string::npos) << text;
}

TEST(Plan, keeps_ranges_as_one_run_whatever_their_number) {
  const List local = pages(4000000000, 16);
  const List remote = pages(4000000000, 16, kBase + (uint64_t{1} << 40));
  const Plan all = Plan::compile(*local, nullptr, *remote, nullptr, TOWLINE_WRITE);
  EXPECT_EQ(all.view().run_count, 1U);
  EXPECT_EQ(all.view().blocks, 4000000000U);
  EXPECT_EQ(all.bytes(), 64000000000U);
  const towline_picks_t from = pick_range(3, 7, 500000000);
  const towline_picks_t to = pick_range(1, 2, 500000000);
  const Plan stepped = Plan::compile(*local, &from, *remote, &to, TOWLINE_WRITE);
  EXPECT_EQ(stepped.view().run_count, 1U);
  EXPECT_EQ(stepped.view().local_step, 7U);
  EXPECT_EQ(stepped.view().remote_step, 2U);
  EXPECT_LE(stepped.memory_bytes(), 512U);
}

TEST(Plan, keeps_index_arrays_that_are_regular_as_one_run) {
  std::vector<uint32_t> three;
  std::vector<uint64_t> one;
  for (uint32_t i = 0; i < 1000; ++i) {
    three.push_back(5 + 3 * i);
    one.push_back(9 + i);
  }
  const towline_picks_t from = pick_indices(three);
  const towline_picks_t to = pick_indices(one);
  const auto local = pages(4000, 16);
  const auto remote = pages(2000, 16, kBase + (1 << 20));
  const Plan plan = Plan::compile(*local, &from, *remote, &to, TOWLINE_READ);
  EXPECT_EQ(plan.view().run_count, 1U);
  EXPECT_EQ(plan.view().local_step, 3U);
  EXPECT_EQ(plan.view().remote_step, 1U);
  EXPECT_EQ(plan.view().runs[0].local_block, 5U);
}

TEST(Plan, merges_consecutive_picks_into_runs_of_sixteen_bytes) {
  const std::vector<uint32_t> from = {10, 11, 12, 40, 41, 7};
  const std::vector<uint64_t> to = {20, 21, 22, 23, 24, 25};
  const towline_picks_t local_picks = pick_indices(from);
  const towline_picks_t remote_picks = pick_indices(to);
  const auto local = pages(100, 16);
  const auto remote = pages(100, 16, kBase + 100000);
  const Plan plan = Plan::compile(*local, &local_picks, *remote, &remote_picks, TOWLINE_WRITE);
  ASSERT_EQ(plan.view().run_count, 3U);
  EXPECT_EQ(plan.view().runs[0].count, 3U);
  EXPECT_EQ(plan.view().runs[1].count, 2U);
  EXPECT_EQ(plan.view().runs[2].local_block, 7U);
  EXPECT_EQ(sizeof(towline_run), 16U);
}

TEST(Plan, takes_at_most_sixteen_bytes_a_block) {
  Random random(1);
  std::vector<uint32_t> from(100000);
  for (uint32_t i = 0; i < from.size(); ++i) from[i] = i;
  std::vector<uint32_t> to = from;
  std::shuffle(from.begin(), from.end(), random);
  std::shuffle(to.begin(), to.end(), random);
  const towline_picks_t local_picks = pick_indices(from);
  const towline_picks_t remote_picks = pick_indices(to);
  const List local = pages(100000, 4096);
  const List remote = pages(100000, 4096, kBase + (uint64_t{1} << 40));
  const Plan plan = Plan::compile(*local, &local_picks, *remote, &remote_picks, TOWLINE_WRITE);
  EXPECT_LE(plan.memory_bytes() - sizeof(Plan), 16U * 100000U);
}

TEST(Plan, names_the_first_index_outside_its_list) {
  const List local = pages(100, 16);
  const List remote = pages(100, 16, kBase + 100000);
  const towline_picks_t all = pick_range(0, 1, 4);
  expect_refused(local, pick_indices(std::vector<uint32_t>{1, 2, 100, 200}), remote, all, TOWLINE_WRITE,
                 Status::kOutOfRange, "'from' index 100 at position 2 of 4");
  expect_refused(local, all, remote, pick_indices(std::vector<uint32_t>{1, 0xffffffff, 3, 4}), TOWLINE_WRITE,
                 Status::kOutOfRange, "'to' index -1 at position 1");
  expect_refused(local, pick_indices(std::vector<uint64_t>{uint64_t{1} << 32, 0, 1, 2}), remote, all,
                 TOWLINE_WRITE, Status::kOutOfRange, "'from' index 4294967296 at position 0");
  expect_refused(local, pick_indices(std::vector<uint64_t>{0, 1, 2, UINT64_MAX - 1}), remote, all,
                 TOWLINE_READ, Status::kOutOfRange, "'to' index -2 at position 3");
}

// Indices are checked eight at a time.
TEST(Plan, names_a_wrong_index_wherever_it_stands) {
  const List local = pages(100, 16);
  const List remote = pages(100, 16, kBase + 100000);
  for (const uint32_t wrong : {uint32_t{100}, uint32_t{1} << 31, UINT32_MAX}) {
    for (uint32_t at = 0; at < 20; ++at) {
      std::vector<uint32_t> indices;
      for (uint32_t i = 0; i < 20; ++i) indices.push_back(i % 2 == 0 ? i : 100 - i);
      indices[at] = wrong;
      expect_refused(local, pick_indices(indices), remote, pick_range(0, 1, 20), TOWLINE_WRITE,
                     Status::kOutOfRange, "at position " + std::to_string(at) + " of 20");
    }
  }
}

// A block table that another thread refills: every value is used as it was checked, or refused.
template <class Index>
void compile_while_refilled(Index wild, uint64_t remote_length, uint32_t op) {
  constexpr uint64_t kBlocks = 20000;
  const List local = pages(kBlocks, 64);
  const List remote = pages(kBlocks * 64 / remote_length, remote_length, kBase + (uint64_t{1} << 40));
  std::vector<Index> indices;
  for (Index i = 0; i < kBlocks; ++i) indices.push_back(i % 2 == 0 ? i : kBlocks - i);
  const towline_picks_t picks = pick_indices(indices);
  const towline_picks_t all = pick_range(0, 1, remote->blocks());
  testing::while_written(indices[kBlocks / 2], Index{kBlocks / 2}, wild, [&] {
    const auto [status, text] = error_of([&] {
      const Plan plan = Plan::compile(*local, &picks, *remote, &all, op);
      uint64_t highest = 0;
      for (uint64_t r = 0; r < plan.view().run_count; ++r)
        highest = std::max(highest, uint64_t{plan.view().runs[r].local_block} + plan.view().runs[r].count);
      EXPECT_LE(highest, plan.view().local->blocks);
    });
    EXPECT_TRUE(status == Status::kOk || status == Status::kOutOfRange) << text;
    return status;
  });
}

TEST(Plan, uses_indices_as_it_checked_them_while_another_thread_writes_to_them) {
  compile_while_refilled<uint32_t>(0xfffffff0, 64, TOWLINE_READ);
  compile_while_refilled<uint64_t>(uint64_t{1} << 31, 64, TOWLINE_WRITE);
  compile_while_refilled<uint32_t>(0xfffffff0, 32, TOWLINE_READ);
}

TEST(Plan, refuses_ranges_that_leave_their_list_also_by_overflow) {
  const List local = pages(100, 16);
  const List remote = pages(100, 16, kBase + 100000);
  const towline_picks_t good = pick_range(0, 1, 3);
  for (const towline_picks_t& bad :
       {pick_range(98, 1, 3), pick_range(100, 0, 3), pick_range(UINT64_MAX, 1, 3), pick_range(0, 50, 3),
        pick_range(1, UINT64_MAX, 3), pick_range(2, uint64_t{1} << 63, 3),
        pick_range(99, UINT64_MAX - 49, 3)}) {
    expect_refused(local, bad, remote, good, TOWLINE_WRITE, Status::kOutOfRange, "the 'from' range");
    expect_refused(local, good, remote, bad, TOWLINE_WRITE, Status::kOutOfRange, "the 'to' range");
  }
}

TEST(Plan, refuses_picks_that_make_no_sense) {
  const List local = pages(100, 16);
  const List remote = pages(100, 16, kBase + 100000);
  const towline_picks_t good = pick_range(0, 1, 3);
  expect_refused(local, pick_range(0, 1, 0), remote, good, TOWLINE_WRITE, Status::kInvalidArgument,
                 "no 'from' block");
  const std::vector<uint32_t> indices = {1, 2, 3};
  towline_picks_t odd = pick_indices(indices);
  odd.index_bytes = 3;
  expect_refused(local, odd, remote, good, TOWLINE_WRITE, Status::kInvalidArgument, "have 3 bytes");
  odd.index_bytes = 4;
  odd.count = kMaxPickedBlocks + 1;  // refused before anything is read
  expect_refused(local, odd, remote, good, TOWLINE_WRITE, Status::kLimitExceeded, "picked by index");
  expect_refused(local, good, remote, good, 2, Status::kInvalidArgument, "operation 2");
  expect_refused(local, pick_range(5, 0, uint64_t{1} << 32), remote, good, 1, Status::kLimitExceeded,
                 "4294967296");
}

TEST(Plan, refuses_a_block_picked_twice_where_bytes_land_only) {
  const List local = pages(100, 16);
  const List remote = pages(100, 16, kBase + 100000);
  const towline_picks_t other = pick_range(0, 1, 4);
  const std::vector<uint32_t> twice = {5, 9, 7, 9};
  const towline_picks_t picks = pick_indices(twice);
  expect_refused(local, picks, remote, other, TOWLINE_READ, Status::kInvalidArgument,
                 "'to' block 9 is picked twice, at positions 1 and 3");
  expect_refused(local, other, remote, picks, TOWLINE_WRITE, Status::kInvalidArgument,
                 "'to' block 9 is picked twice, at positions 1 and 3");
  EXPECT_NO_THROW((void)Plan::compile(*local, &picks, *remote, &other, TOWLINE_WRITE));
  EXPECT_NO_THROW((void)Plan::compile(*local, &other, *remote, &picks, TOWLINE_READ));
  expect_refused(local, pick_range(3, 0, 4), remote, other, TOWLINE_READ, Status::kInvalidArgument, "step 0");
  // In a list so large that a bitmap would not pay.
  const List huge = pages(4000000000, 16, kBase + (1 << 20));
  const std::vector<uint64_t> far = {3999999999, 5, 2000000000, 5};
  expect_refused(local, other, huge, pick_indices(far), TOWLINE_WRITE, Status::kInvalidArgument,
                 "'to' block 5 is picked twice, at positions 1 and 3");
  const std::vector<uint64_t> fine = {3999999999, 5, 2000000000, 6};
  const towline_picks_t fine_picks = pick_indices(fine);
  EXPECT_NO_THROW((void)Plan::compile(*local, &other, *huge, &fine_picks, TOWLINE_WRITE));
  // Also when blocks are cut.
  const List halves = pages(100, 8, kBase + 200000);
  const std::vector<uint32_t> eight = {1, 2, 3, 4, 5, 6, 7, 1};
  expect_refused(local, other, halves, pick_indices(eight), TOWLINE_WRITE, Status::kInvalidArgument,
                 "'to' block 1 is picked twice, at positions 0 and 7");
}

TEST(Plan, refuses_overlapping_targets_but_not_disjoint_picks_of_an_overlapping_list) {
  const List source = pages(100, 16);
  const List target = make_list({entry(kBase + 100000, 16, {{100, 8}})});
  const towline_picks_t ten = pick_range(0, 1, 10);
  expect_refused(source, ten, target, ten, TOWLINE_WRITE, Status::kInvalidArgument, "'to' blocks");
  const towline_picks_t every_second = pick_range(1, 2, 10);
  EXPECT_NO_THROW((void)Plan::compile(*source, &ten, *target, &every_second, TOWLINE_WRITE));
  EXPECT_NO_THROW((void)Plan::compile(*source, &ten, *target, &ten, TOWLINE_READ));
  expect_refused(source, ten, target, pick_indices(std::vector<uint32_t>{0, 2, 4, 6, 8, 10, 12, 14, 16, 17}),
                 TOWLINE_WRITE, Status::kInvalidArgument, "'to' blocks 16 and 17 (positions 8 and 9)");
}

TEST(Plan, refuses_sides_that_do_not_fit_together) {
  const towline_picks_t ten = pick_range(0, 1, 10);
  const towline_picks_t nine = pick_range(0, 1, 9);
  const List list = pages(100, 96);
  expect_refused(list, ten, pages(100, 96, kBase + 100000), nine, TOWLINE_WRITE, Status::kMismatch,
                 "10 'from' blocks of 96 bytes are paired with 9 'to' blocks of 96 bytes");
  expect_refused(list, ten, pages(100, 48, kBase + 100000), nine, TOWLINE_WRITE, Status::kMismatch,
                 "10 'from' blocks of 96 bytes and 9 'to' blocks of 48 bytes");
  // 96 and 64: the common divisor is below 64 bytes.
  expect_refused(list, pick_range(0, 1, 2), pages(100, 64, kBase + 100000), pick_range(0, 1, 3),
                 TOWLINE_WRITE, Status::kMismatch, "'from' blocks of 96 bytes and 'to' blocks of 64 bytes");
  const towline_picks_t two = pick_range(0, 1, 2);
  const towline_picks_t three = pick_range(0, 1, 3);
  EXPECT_NO_THROW(
      (void)Plan::compile(*pages(10, 192), &two, *pages(10, 128, kBase + 100000), &three, TOWLINE_WRITE));
}

TEST(Plan, names_the_first_pair_of_different_length) {
  const List local = make_list({entry(kBase, 16), entry(kBase + 100, 32), entry(kBase + 200, 48)});
  const List remote = make_list({entry(kBase + 1000, 16), entry(kBase + 1100, 32), entry(kBase + 1200, 40)});
  const towline_picks_t all = pick_range(0, 1, 3);
  expect_refused(local, all, remote, all, TOWLINE_WRITE, Status::kMismatch,
                 "position 2: 'from' block 2 has 48 bytes, 'to' block 2 has 40");
  expect_refused(local, all, remote, all, TOWLINE_READ, Status::kMismatch,
                 "position 2: 'from' block 2 has 40 bytes, 'to' block 2 has 48");
  const towline_picks_t two = pick_range(0, 1, 2);
  const Plan plan = Plan::compile(*local, &two, *remote, &two, TOWLINE_WRITE);
  EXPECT_EQ(plan.bytes(), 48U);
  EXPECT_EQ(plan.view().block_length, 0U);
  const towline_picks_t first = pick_range(0, 1, 1);
  EXPECT_EQ(Plan::compile(*local, &first, *remote, &first, TOWLINE_WRITE).view().block_length, 16U);
  expect_refused(local, all, remote, two, TOWLINE_WRITE, Status::kMismatch, "of different lengths");
}

TEST(Plan, keeps_ranges_of_unequal_blocks_as_one_run) {
  const towline_picks_t from = pick_range(1, 1, 1000000);
  const towline_picks_t to = pick_range(3, 2, 16000000);
  const List local = pages(2000000, 65536);
  const List remote = pages(40000000, 4096, kBase + (uint64_t{1} << 45));
  const Plan plan = Plan::compile(*local, &from, *remote, &to, TOWLINE_WRITE);
  EXPECT_EQ(plan.view().run_count, 1U);
  EXPECT_EQ(plan.view().block_length, 4096U);
  EXPECT_EQ(plan.view().local_step, 1U);
  EXPECT_EQ(plan.view().remote_step, 2U);
  EXPECT_EQ(plan.picked_blocks(), 1000000U);
}

TEST(Plan, bounds_the_pieces_that_cutting_may_make) {
  Random random(1);
  std::vector<uint32_t> indices = {5, 1};
  const List local = pages(10, uint64_t{1} << 32);
  const List remote = pages(uint64_t{1} << 31, 64, kBase + (uint64_t{1} << 45));
  expect_refused(local, pick_indices(indices), remote, pick_range(0, 1, uint64_t{1} << 27), TOWLINE_WRITE,
                 Status::kLimitExceeded, "pieces of 64 bytes");
}

TEST(Plan, needs_the_access_right_that_the_operation_uses) {
  const List local = pages(100, 16);
  const List readable = make_list({entry(kBase + 100000, 16, {{100, 32}})}, TOWLINE_ACCESS_READ);
  const towline_picks_t ten = pick_range(0, 1, 10);
  EXPECT_NO_THROW((void)Plan::compile(*local, &ten, *readable, &ten, TOWLINE_READ));
  expect_refused(local, ten, readable, ten, TOWLINE_WRITE, Status::kPermissionDenied, "without write access");
  // Only blocks that are picked count.
  const RegionIndex regions(std::vector{region(1, kBase, 4096, 3), region(2, kBase + 4096, 4096, 2)});
  const List mixed = ResolvedList::from_blocks(
      std::vector{entry(kBase, 16, {{100, 32}}), entry(kBase + 4096, 16, {{100, 32}})}, regions);
  EXPECT_NO_THROW((void)Plan::compile(*local, &ten, *mixed, &ten, TOWLINE_READ));
  expect_refused(local, ten, mixed, pick_range(95, 1, 10), TOWLINE_READ, Status::kPermissionDenied,
                 "position 5:");
}

TEST(Plan, takes_one_block_of_each_side_however_it_is_picked) {
  const List local = pages(100, 16);
  const List remote = pages(50, 16, kBase + 100000);
  const std::vector<uint32_t> seven = {7};
  const std::vector<uint64_t> forty = {40};
  const std::vector<uint32_t> several = {3, 1, 2};
  Plan again = Plan::none();
  const auto expect_one = [&](const Plan& plan) {
    EXPECT_EQ(plan.view().local, &local->view());
    EXPECT_EQ(plan.view().remote, &remote->view());
    ASSERT_EQ(plan.view().run_count, 1U);
    EXPECT_EQ(plan.view().runs[0].local_block, 7U);
    EXPECT_EQ(plan.view().runs[0].remote_block, 40U);
    EXPECT_EQ(plan.view().runs[0].count, 1U);
    EXPECT_EQ(plan.view().local_step, 1U);
    EXPECT_EQ(plan.view().remote_step, 1U);
    EXPECT_EQ(plan.view().blocks, 1U);
    EXPECT_EQ(plan.view().block_length, 16U);
    EXPECT_EQ(plan.bytes(), 16U);
    EXPECT_EQ(plan.picked_blocks(), 1U);
  };
  for (const towline_picks_t& from : {pick_indices(seven), pick_range(7, 5, 1), pick_range(7, 0, 1)}) {
    for (const towline_picks_t& to : {pick_indices(forty), pick_range(40, 1, 1)}) {
      for (const uint32_t op : {TOWLINE_READ, TOWLINE_WRITE}) {
        expect_one(Plan::compile(*local, &from, *remote, &to, op));
        const towline_picks_t others = pick_indices(several);
        again.compile_again(*local, &others, *remote, &others, op);
        EXPECT_EQ(again.view().run_count, 2U);
        EXPECT_EQ(again.bytes(), 48U);
        again.compile_again(*local, &from, *remote, &to, op);
        expect_one(again);
      }
    }
  }
}

// What is wrong with one block is told as with several.
TEST(Plan, refuses_one_block_that_is_wrong) {
  const List local = pages(100, 16);
  const List remote = pages(50, 16, kBase + 100000);
  const towline_picks_t first = pick_range(0, 1, 1);
  const auto refused = [&](const towline_picks_t& from, const towline_picks_t& to, Status code,
                           const std::string& part) {
    expect_refused(local, from, remote, to, TOWLINE_WRITE, code, part);
  };
  refused(pick_indices(std::vector<uint32_t>{100}), first, Status::kOutOfRange,
          "'from' index 100 at position 0 of 1");
  refused(first, pick_indices(std::vector<uint64_t>{50}), Status::kOutOfRange,
          "'to' index 50 at position 0 of 1");
  refused(pick_indices(std::vector<uint64_t>{uint64_t{1} << 32}), first, Status::kOutOfRange,
          "'from' index 4294967296 at position 0 of 1");
  refused(first, pick_range(50, 1, 1), Status::kOutOfRange,
          "the 'to' range begins at block 50, the list has 50");
  refused(first, pick_range(0, 1, 2), Status::kMismatch, "1 'from' blocks of 16 bytes");
  const std::vector<uint32_t> index = {0};
  towline_picks_t odd = pick_indices(index);
  odd.index_bytes = 2;
  refused(odd, first, Status::kInvalidArgument, "the 'from' indices have 2 bytes each");
  expect_refused(local, first, pages(50, 32, kBase + 100000), first, TOWLINE_WRITE, Status::kMismatch,
                 "hold different amounts");
  expect_refused(local, first, make_list({entry(kBase, 16)}, TOWLINE_ACCESS_READ), first, TOWLINE_WRITE,
                 Status::kPermissionDenied, "without write access");
}

TEST(Plan, can_be_moved) {
  const List local = pages(100, 64);
  const List remote = pages(200, 32, kBase + 100000);
  const towline_picks_t to = pick_range(0, 1, 200);
  Plan plan = Plan::compile(*local, nullptr, *remote, &to, TOWLINE_WRITE);
  const Plan moved = std::move(plan);
  plugin::Cursor cursor(moved.view());
  EXPECT_EQ(testing::bytes_of(walk(cursor)).size(), 6400U);
}

}  // namespace
}  // namespace towline
