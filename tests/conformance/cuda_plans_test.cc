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
