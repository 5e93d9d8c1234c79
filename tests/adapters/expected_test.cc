// Outcomes as std::expected, which C++23 has, and as exceptions.
#include "towline/coroutine.hpp"

#include <array>

#include "pair.h"

#if !defined(__cpp_lib_expected)
#error "built for C++23 alone"
#endif

namespace towline::adapters {
namespace {

class ExpectedTest : public PairTest {
 protected:
  void SetUp() override {
    start();
    plan_.emplace(near_->plan(*from_, *to_));
  }
  void TearDown() override {
    plan_.reset();
    PairTest::TearDown();
  }
  std::optional<Plan> plan_;
};

template <class Wait>
Error thrown_by(Wait&& wait) {
  try {
    wait();
  } catch (const Error& error) {
    return error;
  }
  return {Status::kOk, "nothing was thrown"};
}

TEST_P(ExpectedTest, APostThatIsDoneGivesWhatMoved) {
  const Post post = plan_->post();
  const std::expected<Result, Error> done = post.expected(20s);
  ASSERT_TRUE(done.has_value()) << done.error().what();
  EXPECT_EQ(done->bytes, kBytes);
  EXPECT_EQ(post.get().bytes, kBytes);
}

TEST_P(ExpectedTest, APostThatIsRefusedSaysWhy) {
  const std::array<uint32_t, 1> outside = {kBlocks};
  const Post post = plan_->post({.from = outside, .to = Range{0, 1, 1}});
  const auto refused = post.expected();
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code(), Status::kOutOfRange);
  EXPECT_NE(std::string_view{refused.error().what()}.find("index 64 at position 0 of 1"),
            std::string_view::npos)
      << refused.error().what();
  EXPECT_STREQ(thrown_by([&] { (void)post.get(); }).what(), refused.error().what());
}

TEST_P(ExpectedTest, APostThatFailsNamesThePeer) {
  ASSERT_TRUE(plan_->post().expected(20s).has_value());
  far_region_.reset();
  far_.reset();
  const Post post = plan_->post();
  const auto failed = post.expected(30s);
  ASSERT_FALSE(failed.has_value());
  EXPECT_TRUE(is_error(failed.error().code()));
  EXPECT_NE(std::string_view{failed.error().what()}.find("'far'"), std::string_view::npos)
      << failed.error().what();
}

TEST_P(ExpectedTest, AWaitThatGivesUpSaysThatTheWorkGoesOn) {
  const Group group = near_->group({.deadline = 20s});
  ASSERT_FALSE(is_error(group.add(*plan_)));
  const auto early = group.expected(1ms);
  ASSERT_FALSE(early.has_value());
  EXPECT_EQ(early.error().code(), Status::kNotYet);
  EXPECT_NE(std::string_view{early.error().what()}.find("goes on"), std::string_view::npos);
  EXPECT_EQ(thrown_by([&] { (void)group.get(1ms); }).code(), Status::kNotYet);
  group.close();
  const auto done = group.expected(20s);
  ASSERT_TRUE(done.has_value()) << done.error().what();
  EXPECT_EQ(done->members, 1u);
  EXPECT_EQ(group.get().bytes, kBytes);
}

TEST_P(ExpectedTest, AGroupThatFailsNamesItsMember) {
  const Group group = near_->group({.deadline = 20s});
  EXPECT_EQ(group.add(*plan_, {.from = Range{kBlocks, 1, 1}, .to = Range{0, 1, 1}}), Status::kOutOfRange);
  const auto failed = group.expected(20s);
  ASSERT_FALSE(failed.has_value());
  EXPECT_EQ(failed.error().code(), Status::kOutOfRange);
  EXPECT_NE(std::string_view{failed.error().what()}.find("member 0"), std::string_view::npos)
      << failed.error().what();
}

TEST(Expected, WhatWasAwaitedTells) {
  EXPECT_TRUE(Finished{Status::kOk}.expected().has_value());
  EXPECT_NO_THROW(Finished{Status::kOk}.check());
  const Finished lost{Status::kPeerLost, "peer 'far' is gone"};
  EXPECT_STREQ(lost.expected().error().what(), "peer 'far' is gone");
  EXPECT_EQ(thrown_by([&] { lost.check(); }).code(), Status::kPeerLost);
}

INSTANTIATE_TEST_SUITE_P(Over, ExpectedTest, ::testing::Values("memory", "shm", "tcp"),
                         [](const auto& of) { return std::string(of.param); });

}  // namespace
}  // namespace towline::adapters
