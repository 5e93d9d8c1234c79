// Large posts of one caller that are split over several workers (tuning.split).
#include <array>
#include <atomic>
#include <string>
#include <thread>

#include "transport_fixture.h"

namespace towline::conformance {
namespace {

constexpr const char* kAlways = "tuning.split = \"on\"\n";

class SplitTest : public TransportTest {
 protected:
  static constexpr uint64_t kBytes = kBlock * kBlocks;  // enough to be split

  void SetUp() override {
    if (const std::string why = unusable(); !why.empty()) GTEST_SKIP() << why;
    start_with(kAlways);
  }
  void start_with(const std::string& config, uint64_t bytes = kBytes, AgentOptions right = {.workers = 2}) {
    start({.workers = 2, .config = config}, std::move(right), bytes);
  }
  static uint32_t parts(const Plan& plan) {
    const std::string route = plan.route();
    uint32_t count = 0;
    for (std::size_t at = 0; (at = route.find("\"worker\":", at)) != std::string::npos; ++at) ++count;
    return count;
  }
};

TEST_P(SplitTest, EveryByteArrivesBeforeTheNotice) {
  const BlockList from = mine();
  const BlockList to = theirs();
  const Plan plan = left_->plan(from, to);
  for (uint32_t round = 1; round <= 6; ++round) {
    stamp(left_memory_->data(), left_memory_->size(), round);
    const auto here = shuffled(kBlocks, round);
    const auto there = shuffled(kBlocks, 100 + round);
    const Post post =
        plan.post({.from = std::span(here), .to = std::span(there), .notice = std::to_string(round)});
    ASSERT_EQ(next_notice(*right_).text(), std::to_string(round));
    for (uint32_t i = 0; i < kBlocks; ++i)
      ASSERT_EQ(std::memcmp(right_memory_->data() + there[i] * kBlock,
                            left_memory_->data() + here[i] * kBlock, kBlock),
                0)
          << round << " " << i;
    ASSERT_EQ(post.wait(20s), Status::kOk) << post.error();
    EXPECT_EQ(post.result().bytes, kBytes);
    EXPECT_EQ(post.result().fences, 3u);
    EXPECT_EQ(parts(plan), 2u);
  }
}

TEST_P(SplitTest, SmallAndLargePostsOfOnePlanTakeTurns) {
  const BlockList from = theirs();
  const BlockList to = mine();
  const Plan plan = left_->plan(from, to);
  for (uint32_t round = 1; round <= 12; ++round) {
    stamp(right_memory_->data(), right_memory_->size(), round);
    const uint32_t count = round % 3 == 0 ? kBlocks : 7 * round;
    const auto here = shuffled(kBlocks, round);
    const auto there = shuffled(kBlocks, 100 + round);
    const Post post = plan.post({.from = std::span(there).first(count), .to = std::span(here).first(count)});
    ASSERT_EQ(post.wait(20s), Status::kOk) << post.error();
    for (uint32_t i = 0; i < count; ++i)
      ASSERT_EQ(std::memcmp(right_memory_->data() + there[i] * kBlock,
                            left_memory_->data() + here[i] * kBlock, kBlock),
                0)
          << round << " " << i;
    EXPECT_EQ(parts(plan), round % 3 == 0 ? 2u : 1u);
  }
}

TEST_P(SplitTest, ACancelledPostHasOneOutcomeAndAFence) {
  const BlockList from = mine();
  const BlockList to = theirs();
  const Plan plan = left_->plan(from, to);
  std::array<int, 10> came = {};
  const auto receive = [&] {
    const Notice notice = next_notice(*right_);
    const std::string_view text = notice.text();
    ASSERT_EQ(text.size(), 1u);
    EXPECT_EQ(++came.at(static_cast<size_t>(text[0] - '0')), 1) << text << " came again";
  };
  for (size_t round = 0; round < came.size(); ++round) {
    const std::string text = std::to_string(round);
    const Post post = plan.post({.notice = text});
    ASSERT_TRUE(post.accepted()) << last_error();
    (void)post.cancel();
    const Status outcome = post.wait(20s);
    ASSERT_TRUE(outcome == Status::kOk || outcome == Status::kCancelled) << status_name(outcome);
    ASSERT_EQ(post.wait_fenced(Fence::kBoth, 20s), Status::kOk);
    EXPECT_EQ(post.wait(0ns), outcome);
    // A cancelled one's may have been on its way.
    while (outcome == Status::kOk && came.at(round) == 0) ASSERT_NO_FATAL_FAILURE(receive());
  }
  const Post last = plan.post({.notice = "0"});
  ASSERT_EQ(last.wait(20s), Status::kOk);
  came[0] = 0;
  while (came[0] == 0) ASSERT_NO_FATAL_FAILURE(receive());
}

INSTANTIATE_TEST_SUITE_P(Transports, SplitTest, ::testing::ValuesIn(transports()),
                         [](const auto& instance) { return std::string(instance.param.name); });

// What concerns sockets, over which posts are split unless it is slower.
class SocketSplitTest : public SplitTest {};

TEST_P(SocketSplitTest, TheSettingDecides) {
  for (const bool on : {true, false}) {
    start_with(on ? kAlways : "tuning.split = \"off\"\n");
    const BlockList from = mine();
    const BlockList to = theirs();
    const Plan plan = left_->plan(from, to);
    for (int round = 0; round < 40; ++round) {
      ASSERT_EQ(plan.post().wait(20s), Status::kOk);
      ASSERT_EQ(parts(plan), on ? 2u : 1u);
    }
  }
  EXPECT_THROW(start_with("tuning.split = \"often\"\n"), Error);
}

TEST_P(SocketSplitTest, BothWaysAreTriedByItself) {
  start_with("");
  const BlockList from = mine();
  const BlockList to = theirs();
  const Plan plan = left_->plan(from, to);
  std::array<uint32_t, 3> seen = {};
  const auto until = std::chrono::steady_clock::now() + 60s;
  while ((seen[1] < 8 || seen[2] < 8) && std::chrono::steady_clock::now() < until) {
    ASSERT_EQ(plan.post().wait(20s), Status::kOk);
    const uint32_t count = parts(plan);
    ASSERT_TRUE(count == 1 || count == 2);
    ++seen[count];
  }
  EXPECT_GE(seen[1], 8u);
  EXPECT_GE(seen[2], 8u);
}

TEST_P(SocketSplitTest, APostToAPeerThatDoesNotAnswerEndsByItsDeadlineAndIsFencedLater) {
  start_with(kAlways, 64 << 20, {.progress = Progress::kCaller, .workers = 2});
  const BlockList from = mine();
  const BlockList to = theirs();
  const auto serve = [&](auto&& done) {
    const auto until = std::chrono::steady_clock::now() + 30s;
    while (!done() && std::chrono::steady_clock::now() < until) (void)right_->wait(1ms);
    return done();
  };
  std::unique_ptr<Plan> plan;
  std::thread helper([&] { plan = std::make_unique<Plan>(left_->plan(from, to)); });
  std::atomic<bool> joined{false};
  std::thread joiner([&] {
    helper.join();
    joined = true;
  });
  ASSERT_TRUE(serve([&] { return joined.load(); }));
  joiner.join();
  const Post post = plan->post({.notice = "came", .deadline = Deadline(200ms)});
  ASSERT_EQ(post.wait(20s), Status::kTimedOut) << status_name(post.poll());
  EXPECT_NE(post.error(), "");
  EXPECT_TRUE(serve([&] { return post.wait_fenced(Fence::kBoth, 0ns) == Status::kOk; }));
  EXPECT_EQ(post.poll(), Status::kTimedOut);
  Notice notice;
  EXPECT_EQ(right_->receive(notice), Status::kAgain);
}

TEST_P(SocketSplitTest, APeerThatLeavesEndsThePostOnce) {
  start_with(kAlways, 64 << 20);
  const BlockList from = mine();
  const BlockList to = theirs();
  const Plan plan = left_->plan(from, to);
  ASSERT_EQ(plan.post().wait(20s), Status::kOk);
  std::atomic<int> ends{0};
  const Post post = plan.post({.user_data = &ends, .callback = [](const towline_completion_t* completion) {
                                 static_cast<std::atomic<int>*>(completion->user_data)->fetch_add(1);
                               }});
  ASSERT_TRUE(post.accepted());
  right_region_.reset();
  right_.reset();
  const Status outcome = post.wait(20s);
  EXPECT_TRUE(outcome == Status::kOk || outcome == Status::kPeerLost || outcome == Status::kStale)
      << status_name(outcome);
  EXPECT_EQ(post.wait_fenced(Fence::kLocal, 30s), Status::kOk);
  const auto until = std::chrono::steady_clock::now() + 20s;
  while (ends.load() == 0 && std::chrono::steady_clock::now() < until) std::this_thread::yield();
  EXPECT_EQ(ends.load(), 1);
}

std::vector<Transport> over_sockets() {
  std::vector<Transport> all = transports();
  std::erase_if(all, [](const Transport& each) { return std::string(each.name) != "tcp"; });
  return all;
}

#ifndef TOWLINE_CUDA_PLUGIN
INSTANTIATE_TEST_SUITE_P(Transports, SocketSplitTest, ::testing::ValuesIn(over_sockets()),
                         [](const auto& instance) { return std::string(instance.param.name); });
#endif
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(SocketSplitTest);

}  // namespace
}  // namespace towline::conformance
