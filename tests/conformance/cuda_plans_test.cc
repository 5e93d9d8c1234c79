// Posts of plans over memory of GPUs, which name a stream or say that they need none. GPUs are made of host memory.
#include <gtest/gtest.h>

#include <string>

#include "cuda_fixture.h"

namespace towline::conformance {
namespace {

class CudaPlansTest : public CudaStreamTest {
 protected:
  void SetUp() override {
    CudaStreamTest::SetUp();
    if (!HasFatalFailure()) connect();
  }
  [[nodiscard]] Plan make_plan() const {
    return left_->plan(left_->block_list(pages(left_memory_)), peer_->block_list(pages(right_memory_)));
  }
  void stream(const char* command, uint64_t a = 0) { (void)stream_command_(command, stream_, a, 0, 0); }
};

TEST_F(CudaPlansTest, APostNamesAStreamOrSaysThatItNeedsNone) {
  const Plan plan = make_plan();
  EXPECT_TRUE(plan.needs_stream());
  EXPECT_TRUE(plan.takes_stream());
  EXPECT_EQ(plan.backend(), "cuda");
  const Post refused = plan.post();
  EXPECT_EQ(refused.wait(), Status::kInvalidArgument);
  EXPECT_NE(last_error().find("the post names no stream"), std::string_view::npos) << last_error();
  EXPECT_NE(last_error().find("towline::unordered"), std::string_view::npos) << last_error();
  EXPECT_FALSE(arrived());
  const Post post = plan.post({.stream = unordered});
  EXPECT_EQ(post.wait(20s), Status::kOk) << post.error();
  EXPECT_EQ(post.backend(), "cuda");
  EXPECT_TRUE(arrived());
}

TEST_F(CudaPlansTest, APostComesAfterTheWorkOfItsStream) {
  const Plan plan = make_plan();
  Buffer made(left_memory_.size(), false);
  stamp(made.data(), made.size(), 2);
  stream("hold", 1);
  (void)stream_command_("copy", stream_, reinterpret_cast<uint64_t>(left_memory_.data()),
                        reinterpret_cast<uint64_t>(made.data()), made.size());
  const Post post = plan.post({.stream = on(stream_)});
  EXPECT_EQ(post.wait(5ms), Status::kNotYet) << last_error();
  stream("hold", 0);
  EXPECT_EQ(post.wait(20s), Status::kOk) << post.error();
  EXPECT_EQ(std::memcmp(right_memory_.data(), made.data(), made.size()), 0);
}

TEST_F(CudaPlansTest, AMemberWithoutAStreamEndsItsGroup) {
  const Plan plan = make_plan();
  const Group group = left_->group({.notice = "all of it"});
  EXPECT_EQ(group.add(plan, {.stream = unordered}), Status::kInProgress) << last_error();
  EXPECT_EQ(group.add(plan), Status::kInvalidArgument);
  EXPECT_EQ(group.wait(20s), Status::kInvalidArgument);
  EXPECT_NE(group.error().find("names no stream"), std::string::npos) << group.error();
  EXPECT_EQ(group.wait_fenced(Fence::kLocal, 20s), Status::kOk);
}

TEST_F(CudaPlansTest, HostMemoryOfThisAgentNeedsNoStream) {
  Buffer ours(left_memory_.size(), false);
  const Region here = left_->register_memory(dram(ours.data(), ours.size()));
  const BlockList mine = left_->block_list(blocks_of(ours.data(), ours.size(), kPage));
  stamp(ours.data(), ours.size(), 3);
  const Plan plan = left_->plan(mine, peer_->block_list(pages(right_memory_)));
  EXPECT_FALSE(plan.needs_stream());
  const Post post = plan.post();
  EXPECT_EQ(post.wait(20s), Status::kOk) << post.error() << last_error();
  EXPECT_EQ(std::memcmp(right_memory_.data(), ours.data(), ours.size()), 0);
  // The far list is of this agent, too.
  EXPECT_TRUE(left_->plan(mine, left_->block_list(pages(left_memory_))).needs_stream());
}

// The GPU has begun one post, and holds another one behind it.
TEST_F(CudaPlansTest, AnUrgentPostDoesNotComeAfterBulkThatTheGpuWasGiven) {
  const Plan plan = make_plan();
  const auto bulk_then_urgent = [&](const Picks& pages) {
    get_stuck();
    const Post begun = plan.post({.stream = unordered});
    ASSERT_TRUE(begun.accepted()) << last_error();
    wait_until_stuck();
    gpu("let others pass");
    const Post behind = plan.post({.from = pages, .to = pages, .stream = unordered});
    const Post urgent =
        plan.post({.from = pages, .to = pages, .priority = Priority::latency, .stream = unordered});
    EXPECT_EQ(urgent.wait(20s), Status::kOk) << urgent.error() << last_error();
    EXPECT_EQ(behind.poll(), Status::kInProgress);
    EXPECT_EQ(begun.poll(), Status::kInProgress);
    let_go();
    EXPECT_EQ(behind.wait(20s), Status::kOk) << behind.error();
    EXPECT_EQ(begun.wait(20s), Status::kOk) << begun.error();
    EXPECT_TRUE(arrived());
  };
  bulk_then_urgent(Range{3, 1, 1});
  bulk_then_urgent(std::vector<uint32_t>{7, 1, 40, 2});  // by a list
  bulk_then_urgent(std::vector<uint32_t>{7, 1, 40, 2});
}

// The driver may wait for kernels that run before it makes a stream, and they may wait for this very post.
TEST_F(CudaPlansTest, APostAsksTheDriverForNoStream) {
  const Plan plan = make_plan();
  gpu("refuse streams", 0);
  const std::vector<uint32_t> pages = {7, 1, 40, 2};
  for (const Priority priority : {Priority::latency, Priority::bulk}) {
    const Post post = plan.post({.from = pages, .to = pages, .priority = priority, .stream = unordered});
    EXPECT_EQ(post.wait(20s), Status::kOk) << post.error() << last_error();
  }
}

// One after the other, a run prepared for either kind serves the other.
TEST_F(CudaPlansTest, PostsOfOnePlanMayBeUrgentByTurns) {
  const Plan plan = make_plan();
  const std::vector<uint32_t> pages = {9, 3, 30, 5, 50, 11};
  for (uint64_t round = 1; round <= 20; ++round) {
    stamp(left_memory_.data(), left_memory_.size(), round);
    const Priority priority = round % 3 == 0 ? Priority::bulk : Priority::latency;
    const Post post = plan.post({.from = pages, .to = pages, .priority = priority, .stream = unordered});
    ASSERT_EQ(post.wait(20s), Status::kOk) << post.error() << last_error();
    for (const uint32_t page : pages)
      ASSERT_EQ(std::memcmp(right_memory_.data() + page * kPage, left_memory_.data() + page * kPage, kPage),
                0)
          << round << " " << page;
  }
}

TEST_F(CudaPlansTest, AStreamOfAnotherGpuIsRefusedAndThePlanGoesOn) {
  const Plan plan = make_plan();
  void* const other = reinterpret_cast<void*>(stream_command_("make", nullptr, 1, 0, 0));
  const Group group = left_->group({.notice = "never sent", .deadline = 20s});
  EXPECT_EQ(plan.post({.stream = on(other)}).wait(), Status::kInvalidArgument);
  EXPECT_NE(last_error().find("the stream is not of GPU 0"), std::string_view::npos) << last_error();
  EXPECT_EQ(group.add(plan, {.stream = on(other)}), Status::kInvalidArgument);
  EXPECT_NE(group.error().find("the stream is not of GPU 0"), std::string::npos) << group.error();
  EXPECT_FALSE(arrived());
  EXPECT_EQ(plan.post({.stream = on(stream_)}).wait(20s), Status::kOk) << last_error();
  EXPECT_TRUE(arrived());
  (void)stream_command_("free", other, 0, 0, 0);
}

TEST_F(CudaPlansTest, AStreamThatWasDestroyedIsRefusedAndThePlanGoesOn) {
  const Plan plan = make_plan();
  void* const gone = reinterpret_cast<void*>(stream_command_("make", nullptr, 0, 0, 0));
  (void)stream_command_("free", gone, 0, 0, 0);
  EXPECT_EQ(plan.post({.stream = on(gone)}).wait(), Status::kInvalidArgument);
  EXPECT_NE(last_error().find("there is no stream"), std::string_view::npos) << last_error();
  EXPECT_FALSE(arrived());
  EXPECT_EQ(plan.post({.stream = on(stream_)}).wait(20s), Status::kOk) << last_error();
  EXPECT_TRUE(arrived());
}

// As the driver has it: what the stream was given is done.
TEST_F(CudaPlansTest, AStreamMayBeDestroyedWhileAPostWaitsInIt) {
  const Plan plan = make_plan();
  void* const brief = reinterpret_cast<void*>(stream_command_("make", nullptr, 0, 0, 0));
  (void)stream_command_("hold", brief, 1, 0, 0);
  const Post post = plan.post({.stream = on(brief)});
  ASSERT_EQ(post.wait(1ms), Status::kNotYet) << last_error();
  (void)stream_command_("free", brief, 0, 0, 0);
  EXPECT_EQ(post.wait(20s), Status::kOk) << post.error();
  EXPECT_TRUE(arrived());
  const Post next = plan.post({.stream = on(stream_)});
  EXPECT_EQ(next.wait(20s), Status::kOk) << last_error() << next.error();
}

TEST_F(CudaPlansTest, AStreamHasAKind) {
  const Plan plan = make_plan();
  for (const uint32_t kind : {TOWLINE_STREAM_NONE, TOWLINE_STREAM_UNORDERED}) {
    EXPECT_EQ(plan.post({.stream = {stream_, kind}}).wait(), Status::kInvalidArgument);
    EXPECT_NE(last_error().find("options.stream is set"), std::string_view::npos) << last_error();
  }
  EXPECT_EQ(plan.post({.stream = {nullptr, 3}}).wait(), Status::kInvalidArgument);
}

}  // namespace
}  // namespace towline::conformance
