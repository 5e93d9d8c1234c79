// What the framed engine begins of GPU memory's copies together, and what alone.
#include <gtest/gtest.h>

#include <algorithm>

#include "framing/landing_fixture.h"

namespace towline::framing {
namespace {

using testing::FakeGpu;
using testing::FakePlan;
using testing::Lanes;

class LandingLaunchesTest : public testing::LandingTest {};

TEST_P(LandingLaunchesTest, ChunksThatAreDueTogetherTakeOneLaunch) {
  join();
  make_memory(4 << 20);
  gpu_a_.together = gpu_b_.together = true;
  FakePlan plan{key_};
  plan.set_kinds(TOWLINE_MEMORY_VRAM, TOWLINE_MEMORY_VRAM);
  fill(plan, 4096);
  for (const uint32_t op : {TOWLINE_WRITE, TOWLINE_READ}) {
    FakeGpu& from = op == TOWLINE_WRITE ? gpu_a_ : gpu_b_;
    FakeGpu& to = op == TOWLINE_WRITE ? gpu_b_ : gpu_a_;
    from.launches = from.copies = to.launches = to.copies = 0;
    std::vector<uint8_t>& target = op == TOWLINE_WRITE ? remote_ : local_;
    std::fill(target.begin(), target.end(), uint8_t{0});
    ASSERT_EQ(submit(prepare(plan, op), op, plan.bytes()), Status::kInProgress);
    run(op);
    EXPECT_EQ(a_->host.status(op), Status::kOk);
    EXPECT_TRUE(same(4096));
    EXPECT_EQ(from.copies, 6u);
    EXPECT_EQ(to.copies, 6u);
    if (op == TOWLINE_WRITE) {
      EXPECT_EQ(from.launches, 2u) << "the first chunk by itself, and then the others";
    } else {
      EXPECT_LT(from.launches, from.copies);
    }
  }
  expect_nothing_left();
}

TEST_P(LandingLaunchesTest, FramesThatArriveTogetherTakeOneLaunch) {
  join();
  constexpr std::size_t kParts = 6;
  make_memory(kParts * 4096);
  gpu_b_.together = true;
  for (std::size_t i = 0; i < kParts; ++i) {
    FakePlan plan{key_};
    plan.set_kinds(TOWLINE_MEMORY_DRAM, TOWLINE_MEMORY_VRAM);
    plan.add(local_.data() + i * 4096, remote_.data() + i * 4096, 4096);
    ASSERT_EQ(submit(prepare(plan, TOWLINE_WRITE), i + 1, 4096, "there"), Status::kInProgress);
    a_->progress();
  }
  turns();
  EXPECT_EQ(gpu_b_.copies, kParts);
  if (GetParam().count == 1) {
    EXPECT_EQ(gpu_b_.launches, 1u);
  }
  for (std::size_t i = 0; i < kParts; ++i) EXPECT_EQ(a_->host.status(i + 1), Status::kOk);
  EXPECT_EQ(remote_, local_);
  EXPECT_EQ(messages_.size(), kParts);
  expect_nothing_left();
}

TEST_P(LandingLaunchesTest, AChunkIsSentWhileOthersOfItsLaunchAreUnderWay) {
  join();
  make_memory(4 << 20, false);
  gpu_a_.together = true;
  gpu_a_.may_end = 2;
  FakePlan plan{key_};
  plan.set_kinds(TOWLINE_MEMORY_VRAM, TOWLINE_MEMORY_DRAM);
  fill(plan, 4096);
  ASSERT_EQ(submit(prepare(plan, TOWLINE_WRITE), 1, plan.bytes()), Status::kInProgress);
  turns();
  EXPECT_EQ(gpu_a_.launches, 2u);
  EXPECT_EQ(b_->connection.statistics().frames_received, 2u) << "one of each launch";
  EXPECT_FALSE(a_->host.ended(1));
  gpu_a_.may_end = UINT64_MAX;
  run(1);
  EXPECT_EQ(a_->host.status(1), Status::kOk);
  EXPECT_TRUE(same(4096));
  expect_nothing_left();
}

TEST_P(LandingLaunchesTest, RefusedTogetherEachChunkFailsByItself) {
  for (const uint32_t op : {TOWLINE_WRITE, TOWLINE_READ}) {
    for (const bool here : {true, false}) {
      join();
      make_memory(4 << 20);
      FakeGpu& gpu = here ? gpu_a_ : gpu_b_;
      gpu_a_.together = gpu_b_.together = gpu.refuses_together = true;
      gpu.fail_begin_at = 5;
      FakePlan plan{key_};
      plan.set_kinds(TOWLINE_MEMORY_VRAM, TOWLINE_MEMORY_VRAM);
      fill(plan, 4096);
      towline_prepared* const prepared = prepare(plan, op);
      ASSERT_EQ(submit(prepared, 1, plan.bytes(), "lost"), Status::kInProgress);
      run(1);
      turns();
      EXPECT_EQ(a_->host.status(1), Status::kIo) << op << here;
      EXPECT_EQ(a_->host.result(1).fences, 3u);
      EXPECT_TRUE(messages_.empty());
      gpu.refuses_together = false;
      ASSERT_EQ(submit(prepared, 2, plan.bytes(), "there"), Status::kInProgress);
      run(2);
      turns();
      EXPECT_EQ(a_->host.status(2), Status::kOk);
      EXPECT_EQ(messages_, std::vector<std::string>{"there"});
      EXPECT_TRUE(same(4096));
      messages_.clear();
      expect_nothing_left();
    }
  }
}

// Both are read in one pass.
TEST_P(LandingLaunchesTest, AChunkThatWasReceivedBeforeTheConnectionBrokeArrives) {
  join();
  make_memory(64 << 10);
  FakePlan plan{key_};
  plan.set_kinds(TOWLINE_MEMORY_VRAM, TOWLINE_MEMORY_VRAM);
  fill(plan, 4096);
  at_message_ = [&] {
    EXPECT_EQ(gpu_b_.copies, 0u) << "it is still due";
    b_->connection.fail(Status::kPeerLost, "by the test");
  };
  ASSERT_EQ(submit(prepare(plan, TOWLINE_WRITE), 1, plan.bytes()), Status::kInProgress);
  for (int i = 0; i < 10; ++i) a_->progress();
  ASSERT_EQ(a_->connection.send("fail", 4), TOWLINE_OK);
  for (int i = 0; i < 10; ++i) {
    a_->progress();
    b_->progress();
  }
  EXPECT_TRUE(b_->connection.down());
  EXPECT_EQ(gpu_b_.copies, 1u);
  EXPECT_TRUE(same(4096));
  EXPECT_TRUE(b_->connection.settled());
  EXPECT_EQ(b_->host.pins_held(), 0u);
}

INSTANTIATE_TEST_SUITE_P(Media, LandingLaunchesTest,
                         ::testing::Values(Lanes{"one_lane", 1}, Lanes{"four_lanes", 4}),
                         [](const auto& tested) { return std::string(tested.param.name); });

}  // namespace
}  // namespace towline::framing
