// Handles that end while a copy stands still: no destructor waits for it, and the memory is kept until its fence. GPUs are
// made of host memory.
#include <gtest/gtest.h>

#include <atomic>

#include "cuda_fixture.h"

namespace towline::conformance {
namespace {

class ReleaseTest : public CudaStreamTest {
 protected:
  void SetUp() override {
    CudaStreamTest::SetUp();
    if (!HasFatalFailure()) connect();
  }
  [[nodiscard]] Plan make_plan() const {
    return left_->plan(left_->block_list(pages(left_memory_)), peer_->block_list(pages(right_memory_)));
  }
  // Far below the 30 s for which these waited once, far above what a busy machine takes.
  template <class Drop>
  static void expect_at_once(const char* what, Drop&& drop) {
    const auto before = std::chrono::steady_clock::now();
    drop();
    EXPECT_LT(std::chrono::steady_clock::now() - before, 5s) << what;
  }
};

TEST_F(ReleaseTest, APlanAndItsPostEndAtOnceAndTheRegionAwaitsTheFence) {
  auto plan = std::make_unique<Plan>(make_plan());
  get_stuck();
  auto post = std::make_unique<Post>(plan->post({.stream = unordered}));
  ASSERT_TRUE(post->accepted()) << last_error();
  wait_until_stuck();
  expect_at_once("the plan and its post", [&] { plan.reset(), post.reset(); });
  EXPECT_EQ(left_region_->deregister(50ms), Status::kNotYet);
  EXPECT_NE(last_error().find("a transfer of this agent is still in flight"), std::string_view::npos)
      << last_error();
  let_go();
  EXPECT_EQ(left_region_->deregister(20s), Status::kOk) << last_error();
}

TEST_F(ReleaseTest, ATransferEndsAtOnceAndTheRegionAwaitsTheFence) {
  auto move = std::make_unique<Transfer>(
      left_->transfer(left_->block_list(pages(left_memory_)), peer_->block_list(pages(right_memory_))));
  get_stuck();
  ASSERT_EQ(move->post(), Status::kInProgress) << last_error();
  wait_until_stuck();
  expect_at_once("the transfer", [&] { move.reset(); });
  EXPECT_EQ(left_region_->deregister(50ms), Status::kNotYet);
  let_go();
  EXPECT_EQ(left_region_->deregister(20s), Status::kOk) << last_error();
}

TEST_F(ReleaseTest, AnOwnerIsKeptUntilTheFence) {
  struct Owner {
    explicit Owner(std::atomic<bool>& flag) : gone(flag) {}
    ~Owner() { gone = true; }
    std::atomic<bool>& gone;
  };
  std::atomic<bool> gone = false;
  left_region_.reset();
  left_region_ = std::make_unique<Region>(
      left_->register_memory(std::make_shared<Owner>(gone), vram(left_memory_), {.access = Access::kAll}));
  auto plan = std::make_unique<Plan>(make_plan());
  get_stuck();
  (void)plan->post({.stream = unordered});
  wait_until_stuck();
  expect_at_once("the plan and the region", [&] { plan.reset(), left_region_.reset(); });
  EXPECT_FALSE(gone);
  let_go();
  const auto until = std::chrono::steady_clock::now() + 20s;
  while (!gone && std::chrono::steady_clock::now() < until) std::this_thread::yield();
  EXPECT_TRUE(gone);
}

TEST_F(ReleaseTest, APostThatIsHeldOutlivesItsPlansRelease) {
  auto plan = std::make_unique<Plan>(make_plan());
  towline_post_t* held = nullptr;
  auto options = towline_post_options_t{};
  options.struct_size = sizeof options;
  options.stream_kind = TOWLINE_STREAM_UNORDERED;
  get_stuck();
  ASSERT_EQ(towline_plan_post(plan->native(), &options, &held), TOWLINE_IN_PROGRESS) << last_error();
  wait_until_stuck();
  expect_at_once("the plan", [&] { plan.reset(); });
  EXPECT_EQ(towline_post_wait(held, TOWLINE_FOREVER), TOWLINE_CANCELLED);
  EXPECT_EQ(towline_post_wait_fenced(held, TOWLINE_FENCE_LOCAL, 1), TOWLINE_NOT_YET);
  let_go();
  EXPECT_EQ(towline_post_wait_fenced(held, TOWLINE_FENCE_LOCAL, TOWLINE_FOREVER), TOWLINE_OK);
  towline_post_release(held);
}

TEST_F(ReleaseTest, APostsEndIsToldAfterItsPlansRelease) {
  std::atomic<int32_t> told = TOWLINE_IN_PROGRESS;
  auto plan = std::make_unique<Plan>(make_plan());
  get_stuck();
  (void)plan->post({.stream = unordered, .user_data = &told, .callback = [](const towline_completion_t* end) {
                      static_cast<std::atomic<int32_t>*>(end->user_data)->store(end->status);
                    }});
  wait_until_stuck();
  plan.reset();
  const auto until = std::chrono::steady_clock::now() + 20s;
  while (told == TOWLINE_IN_PROGRESS && std::chrono::steady_clock::now() < until) std::this_thread::yield();
  EXPECT_EQ(told, TOWLINE_CANCELLED);
  let_go();
}

TEST_F(ReleaseTest, AnAgentThatEndsTakesWhatWasReleasedWithIt) {
  for (int i = 0; i < 100; ++i) {
    Plan plan = make_plan();
    (void)plan.post({.stream = unordered});
  }
  expect_at_once("the agent", [&] { left_.reset(); });
}

TEST_F(ReleaseTest, NullIsNothing) {
  towline_plan_release(nullptr);
  towline_transfer_release(nullptr);
}

}  // namespace
}  // namespace towline::conformance
