// One rule for every wait: one that gives up answers kNotYet, and what it waits for goes on. kTimedOut is an operation's own
// end. A time that has passed only looks, and never stands for a default.
#include <atomic>
#include <functional>
#include <optional>
#include <thread>

#include "towline/plan.hpp"
#include "towline/queue.hpp"
#include "towline/towline.hpp"
#include "transport_fixture.h"

namespace towline::conformance {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kBytes = 1 << 16;
constexpr uint64_t kBlock = 4096;
// The limit for operations here that must end at once. Well below the default of 30 s, which a broken rule would wait.
constexpr auto kAtOnce = 10s;

Status code_of(const std::function<void()>& call) {
  try {
    call();
    return Status::kOk;
  } catch (const Error& error) {
    return error.code();
  }
}

// An owner that makes progress only while it is driven, so that a post to it stays in flight.
class Waits : public ::testing::Test {
 protected:
  Waits() {
    owner_region_.emplace(owner_.register_memory(dram(theirs_), {.access = Access::kAll}));
    region_.emplace(visitor_.register_memory(dram(mine_)));
    driven([&] {
      peer_.emplace(visitor_.add_peer(owner_.metadata()));
      from_.emplace(visitor_.block_list(blocks_of(mine_.data(), kBytes, kBlock)));
      to_.emplace(peer_->block_list(blocks_of(theirs_.data(), kBytes, kBlock)));
      plan_.emplace(visitor_.plan(*from_, *to_));
      EXPECT_EQ(plan_->post().wait(60s), Status::kOk) << last_error();
    });
  }
  ~Waits() override {
    driven([&] {
      plan_.reset();
      from_.reset();
      to_.reset();
      peer_.reset();
      if (region_) {
        EXPECT_EQ(region_->deregister(60s), Status::kOk) << last_error();
      }
    });
  }

  void driven(const std::function<void()>& call) {
    std::atomic<bool> ends{false};
    std::thread driver([&] {
      while (!ends.load()) owner_.progress();
    });
    call();
    ends.store(true);
    driver.join();
  }

  std::vector<std::byte> mine_ = std::vector<std::byte>(kBytes);
  std::vector<std::byte> theirs_ = std::vector<std::byte>(kBytes);
  Agent owner_{"owner", {.progress = Progress::kCaller, .backends = "tcp"}};
  Agent visitor_{"visitor", {.listen = "none", .backends = "tcp", .default_timeout = 60s}};
  std::optional<Region> owner_region_, region_;
  std::optional<Peer> peer_;
  std::optional<BlockList> from_, to_;
  std::optional<Plan> plan_;
};

TEST_F(Waits, APostAGroupAndTheirFencesGoOnWhenTheWaitGivesUp) {
  const Post post = plan_->post();
  ASSERT_TRUE(post.accepted()) << last_error();
  const Group group = visitor_.group();
  ASSERT_FALSE(is_error(group.add(*plan_))) << last_error();
  EXPECT_EQ(post.poll(), Status::kInProgress);
  EXPECT_EQ(post.wait(1ms), Status::kNotYet);
  EXPECT_EQ(post.wait(0s), Status::kNotYet);
  EXPECT_EQ(post.wait(-5s), Status::kNotYet);
  EXPECT_EQ(post.wait_fenced(Fence::kBoth, 1ms), Status::kNotYet);
  EXPECT_EQ(group.wait(1ms), Status::kNotYet) << "it is open";
  EXPECT_EQ(group.close(), Status::kInProgress);
  EXPECT_EQ(group.wait(1ms), Status::kNotYet);
  EXPECT_EQ(group.wait_fenced(Fence::kLocal, 1ms), Status::kNotYet);
  driven([&] {
    EXPECT_EQ(post.wait(60s), Status::kOk) << post.error();
    EXPECT_EQ(group.wait(60s), Status::kOk) << group.error();
    EXPECT_EQ(post.wait_fenced(Fence::kBoth, 60s), Status::kOk);
  });
}

TEST_F(Waits, ATransferAndARegionGoOnToo) {
  Transfer move = visitor_.transfer(*from_, *to_);
  ASSERT_EQ(move.post(), Status::kInProgress) << last_error();
  EXPECT_EQ(move.wait(1ms), Status::kNotYet);
  EXPECT_EQ(move.wait_fenced(Fence::kLocal, 1ms), Status::kNotYet);
  EXPECT_EQ(region_->deregister(0s), Status::kNotYet);
  EXPECT_NE(last_error().find("in flight"), std::string_view::npos) << last_error();
  EXPECT_EQ(move.destroy(0s), Status::kNotYet);
  driven([&] {
    EXPECT_EQ(move.destroy(60s), Status::kOk) << last_error();
    EXPECT_EQ(region_->deregister(60s), Status::kOk) << last_error();
  });
}

TEST_F(Waits, CountersAgentsAndQueuesHaveNothingYet) {
  const Counter counter = visitor_.counter(3);
  EXPECT_EQ(counter.wait(3, 0s), Status::kOk);
  EXPECT_EQ(counter.wait(4, 1ms), Status::kNotYet);
  EXPECT_EQ(visitor_.wait(1ms), Status::kNotYet);
  const Queue queue{visitor_};
  EXPECT_EQ(queue.wait(1ms), Status::kNotYet);
}

TEST_F(Waits, AnOperationEndsWithTimedOut) {
  const Post late = plan_->post({.deadline = 20ms});
  ASSERT_TRUE(late.accepted()) << last_error();
  EXPECT_EQ(late.wait(60s), Status::kTimedOut) << late.error();
}

TEST_F(Waits, ATimeThatHasPassedIsNoDefault) {
  const auto begun = Clock::now();
  const Deadline passed{Clock::now() - 1s};
  EXPECT_EQ(code_of([&] { (void)visitor_.connect(owner_.address(), passed); }), Status::kTimedOut);
  EXPECT_TRUE(is_error(code_of([&] { peer_->refresh(passed); })));
  towline_peer_t* none = nullptr;
  EXPECT_EQ(towline_peer_connect(visitor_.native(), owner_.address().c_str(), 0, &none), TOWLINE_TIMED_OUT);
  // An option that was worked out as "until then, from now", and came out negative.
  const auto left = std::chrono::nanoseconds{Clock::now() - (Clock::now() + 5ms)};
  Status made = Status::kOk;
  Status moved = Status::kOk;
  const auto ends = [](Status status) {  // the bytes may be there first
    return status == Status::kTimedOut || status == Status::kOk;
  };
  driven([&] {
    made = code_of([&] {
      const Plan plan = visitor_.plan(*from_, *to_, {.timeout = left});
      EXPECT_TRUE(ends(plan.post().wait(60s)));
    });
    moved = code_of([&] {
      const Transfer move = visitor_.transfer(*from_, *to_, {.timeout = left});
      const Status posted = move.post();
      EXPECT_TRUE(ends(posted == Status::kInProgress ? move.wait(60s) : posted));
    });
  });
  EXPECT_TRUE(made == Status::kOk || made == Status::kTimedOut) << status_name(made);
  EXPECT_TRUE(moved == Status::kOk || moved == Status::kTimedOut) << status_name(moved);
  EXPECT_LT(Clock::now() - begun, kAtOnce);
}

TEST_F(Waits, TheDefaultTimeoutIsTheAgents) {
  towline_peer_t* peer = nullptr;
  driven([&] {
    EXPECT_EQ(
        towline_peer_connect(visitor_.native(), owner_.address().c_str(), TOWLINE_DEFAULT_TIMEOUT, &peer),
        TOWLINE_OK)
        << last_error();
  });
  towline_peer_release(peer);
}

TEST(Deadlines, CountFromTheMomentAtWhichTheyAreMade) {
  const Deadline hour{1h};
  const uint64_t at = hour.absolute_ns();
  const uint64_t first = hour.remaining_ns();
  for (const auto begun = Clock::now(); Clock::now() - begun < 2ms;) std::this_thread::yield();
  EXPECT_EQ(hour.absolute_ns(), at);
  EXPECT_LE(hour.remaining_ns() + 2'000'000, first) << "it does not begin anew";
  EXPECT_EQ(Deadline{-1s}.remaining_ns(), 0u);
  EXPECT_EQ(Deadline{std::chrono::hours::max()}.absolute_ns(), TOWLINE_FOREVER);
  EXPECT_EQ(kForever.remaining_ns(), TOWLINE_FOREVER);
  EXPECT_NE(Deadline{Clock::time_point{}}.absolute_ns(), 0u) << "0 is the default";
}

}  // namespace
}  // namespace towline::conformance
