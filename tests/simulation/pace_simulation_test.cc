// Limits of bandwidth hold in every 10 ms of virtual time, whatever the way the bytes take.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <deque>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include "capi/handles.h"
#include "simulated_agent.h"
#include "support/open_to_peers.h"
#include "towline/pace.h"
#include "towline/plan.h"

namespace towline {
namespace {

constexpr uint64_t kMemoryBytes = 48 << 20;
constexpr uint64_t kRate = 400'000'000;  // 4 MB in 10 ms
constexpr uint64_t kStepNs = 20'000;
constexpr uint64_t kWindowNs = 10 * kMillisecondNs;

class PaceSimulation : public ::testing::TestWithParam<bool> {
 protected:
  struct Side {
    std::shared_ptr<Agent> agent;
    towline_agent_t handle;
    std::vector<uint8_t> memory = std::vector<uint8_t>(kMemoryBytes);
    towline_region_t* region = nullptr;
  };
  struct Move {
    towline_plan_t* plan = nullptr;
    towline_post_t* post = nullptr;
  };

  PaceSimulation() {
    open(mine_, "mine");
    open(theirs_, "theirs");
    std::iota(mine_.memory.begin(), mine_.memory.end(), uint8_t{1});
    const std::vector<uint8_t> blob = theirs_.agent->metadata(nullptr);
    EXPECT_EQ(towline_peer_add(&mine_.handle, blob.data(), blob.size(), &peer_), TOWLINE_OK);
    local_ = list(nullptr, mine_.memory);
    remote_ = list(peer_, theirs_.memory);
    make_plan();
  }
  ~PaceSimulation() override {
    EXPECT_EQ(towline_plan_destroy(plan_, 0), TOWLINE_OK);
    towline_block_list_destroy(local_);
    towline_block_list_destroy(remote_);
    towline_peer_release(peer_);
    for (Side* side : {&mine_, &theirs_}) {
      side->agent->close();
      EXPECT_EQ(towline_region_deregister(side->region, 0), TOWLINE_OK);
    }
  }
  void open(Side& side, const char* name) {
    AgentOptions options = testing::simulated_agent(name, &clock_);
    options.default_timeout_ns = 20 * kSecondNs;
    options.config.set("tuning.memory.framed", GetParam() ? "true" : "false");
    options.config.set("peer.lost", "60s");
    side.agent = Agent::create(std::move(options));
    side.handle.agent = side.agent;
    ASSERT_EQ(towline_region_register(&side.handle, side.memory.data(), kMemoryBytes,
                                      testing::open_to_peers(), &side.region),
              TOWLINE_OK);
  }
  towline_block_list_t* list(towline_peer_t* peer, const std::vector<uint8_t>& memory) {
    towline_blocks_t blocks = {};
    blocks.address = reinterpret_cast<uint64_t>(memory.data());
    blocks.length = 4096;
    blocks.dimensions = 1;
    blocks.count[0] = kMemoryBytes / 4096;
    blocks.stride[0] = 4096;
    towline_block_list_t* made = nullptr;
    EXPECT_EQ(towline_block_list_create(&mine_.handle, peer, &blocks, sizeof blocks, 1, &made), TOWLINE_OK)
        << towline_last_error();
    return made;
  }
  void make_plan() {
    towline_plan_options_t options = {};
    options.struct_size = sizeof options;
    options.timeout_ns = 20 * kSecondNs;
    std::atomic<bool> made{false};
    // The other agent is driven by its application, and the clock stands still meanwhile.
    std::thread other([&] {
      while (!made.load()) {
        theirs_.agent->progress();
        std::this_thread::yield();
      }
    });
    EXPECT_EQ(towline_plan_create(&mine_.handle, local_, remote_, &options, &plan_), TOWLINE_OK)
        << towline_last_error();
    made.store(true);
    other.join();
  }
  // `first`, `count`: blocks.
  towline_post_t* post(uint64_t first, uint64_t count, uint32_t priority = TOWLINE_PRIORITY_BULK,
                       const char* notice = nullptr, towline_group_t* group = nullptr,
                       uint64_t deadline_ns = 0) {
    towline_post_options_t options = {};
    options.struct_size = sizeof options;
    options.from.start = options.to.start = first;
    options.from.step = options.to.step = 1;
    options.from.count = options.to.count = count;
    options.priority = priority;
    options.notice = notice;
    options.notice_bytes = notice == nullptr ? 0 : std::strlen(notice);
    options.group = group;
    options.deadline_ns = deadline_ns;
    towline_post_t* made = nullptr;
    EXPECT_EQ(towline_plan_post(plan_, &options, &made), TOWLINE_IN_PROGRESS) << towline_last_error();
    return made;
  }
  // Bytes that have certainly been moved.
  static uint64_t moved(const towline_post_t* post) {
    towline_result_t result = {};
    result.struct_size = sizeof result;
    EXPECT_EQ(towline_post_result(post, &result), TOWLINE_OK);
    return result.bytes;
  }
  void turn() {
    for (int i = 0; i < 8; ++i) {
      mine_.agent->progress();
      theirs_.agent->progress();
    }
    clock_.advance(kStepNs);
  }
  // Runs until the posts are over, and checks what they move together in each window but the last ones.
  void expect_rate(const std::vector<towline_post_t*>& posts, uint64_t rate) {
    std::deque<uint64_t> totals;
    const double wanted = static_cast<double>(rate) * kWindowNs / kSecondNs;
    double most = 0;
    double least = 1e18;
    const auto over = [&] {
      for (towline_post_t* post : posts)
        if (towline_post_poll(post) == TOWLINE_IN_PROGRESS) return false;
      return true;
    };
    const uint64_t began_ns = clock_.now_ns();
    while (!over()) {
      turn();
      ASSERT_LT(clock_.now_ns() - began_ns, 10 * kSecondNs) << "it does not end";
      uint64_t total = 0;
      for (const towline_post_t* post : posts) total += moved(post);
      totals.push_back(total);
      if (totals.size() <= kWindowNs / kStepNs || over()) continue;
      const auto here = static_cast<double>(total - totals.front());
      totals.pop_front();
      most = std::max(most, here);
      least = std::min(least, here);
    }
    EXPECT_LE(most, 1.1 * wanted);
    EXPECT_GE(least, 0.9 * wanted);
    for (towline_post_t* post : posts) EXPECT_EQ(towline_post_poll(post), TOWLINE_OK);
  }
  // Of a post of these blocks that ended early: what has come is not named, all else is. Releases it.
  void expect_rest_named(towline_post_t* post, int32_t outcome, uint64_t first, uint64_t count) {
    EXPECT_EQ(towline_post_poll(post), outcome);
    EXPECT_EQ(towline_post_wait_fenced(post, TOWLINE_FENCE_LOCAL | TOWLINE_FENCE_REMOTE, 0), TOWLINE_OK);
    towline_result_t result = {};
    result.struct_size = sizeof result;
    ASSERT_EQ(towline_post_result(post, &result), TOWLINE_OK);
    EXPECT_GT(result.bytes, 0u);
    EXPECT_LT(result.bytes, 2'000'000u);
    ASSERT_EQ(result.failed_ranges, 1u);
    const towline_failed_range_t& rest = result.failed[0];
    EXPECT_GT(rest.first, 0u);
    EXPECT_EQ(rest.first + rest.count, count);
    EXPECT_GE(result.bytes, rest.first * 4096);
    EXPECT_LT(result.bytes, (rest.first + 1) * 4096) << "more has come than is named";
    const auto begin = static_cast<std::ptrdiff_t>(first * 4096);
    const auto end = begin + static_cast<std::ptrdiff_t>(rest.first * 4096);
    EXPECT_TRUE(
        std::equal(mine_.memory.begin() + begin, mine_.memory.begin() + end, theirs_.memory.begin() + begin))
        << "what is not named has not come";
    towline_post_release(post);
  }
  static void release(const std::vector<towline_post_t*>& posts) {
    for (towline_post_t* post : posts) towline_post_release(post);
  }

  VirtualClock clock_{kSecondNs};
  Side mine_;
  Side theirs_;
  towline_peer_t* peer_ = nullptr;
  towline_block_list_t* local_ = nullptr;
  towline_block_list_t* remote_ = nullptr;
  towline_plan_t* plan_ = nullptr;
};

TEST_P(PaceSimulation, AnAgentsLimitHoldsForOnePostAndItsNoticeComesLast) {
  ASSERT_EQ(towline_agent_set_limit(&mine_.handle, TOWLINE_LIMIT_ALL, kRate), TOWLINE_OK);
  const std::vector posts = {post(0, kMemoryBytes / 4096, TOWLINE_PRIORITY_BULK, "all of it")};
  expect_rate(posts, kRate);
  EXPECT_EQ(mine_.memory, theirs_.memory);
  towline_notice_t notice = {};
  ASSERT_EQ(towline_notice_receive(&theirs_.handle, &notice, sizeof notice), TOWLINE_OK);
  EXPECT_EQ(notice.bytes, 9u);
  towline_notice_release(&theirs_.handle, &notice);
  release(posts);
}

TEST_P(PaceSimulation, APeersLimitHoldsForSeveralPostsTogether) {
  ASSERT_EQ(towline_peer_set_limit(peer_, kRate), TOWLINE_OK);
  std::vector<towline_post_t*> posts;
  for (uint64_t i = 0; i < 6; ++i) posts.push_back(post(i * 2048, 2048));
  expect_rate(posts, kRate);
  EXPECT_EQ(mine_.memory, theirs_.memory);
  release(posts);
}

TEST_P(PaceSimulation, APrioritysLimitDoesNotHoldTheOthersUp) {
  ASSERT_EQ(towline_agent_set_limit(&mine_.handle, TOWLINE_LIMIT_BULK, kRate), TOWLINE_OK);
  const std::vector bulk = {post(0, 8192)};
  for (int i = 0; i < 50; ++i) turn();
  const std::vector urgent = {post(8192, 4096, TOWLINE_PRIORITY_LATENCY)};
  const uint64_t began_ns = clock_.now_ns();
  while (towline_post_poll(urgent[0]) == TOWLINE_IN_PROGRESS) turn();
  EXPECT_LT(clock_.now_ns() - began_ns, 20 * kMillisecondNs) << "16 MiB at the limit take 42 ms";
  expect_rate(bulk, kRate);
  release(bulk);
  release(urgent);
}

TEST_P(PaceSimulation, AGroupsLimitHoldsForItsMembersAndEndsWithIt) {
  towline_group_options_t options = {};
  options.struct_size = sizeof options;
  towline_group_t* group = nullptr;
  ASSERT_EQ(towline_group_create(&mine_.handle, &options, &group), TOWLINE_OK);
  ASSERT_EQ(towline_group_set_limit(group, kRate), TOWLINE_OK);
  std::vector<towline_post_t*> members;
  for (uint64_t i = 0; i < 3; ++i)
    members.push_back(post(i * 4096, 4096, TOWLINE_PRIORITY_BULK, nullptr, group));
  (void)towline_group_close(group);
  expect_rate(members, kRate);
  release(members);
  EXPECT_EQ(towline_group_poll(group), TOWLINE_OK);
  towline_group_release(group);
  EXPECT_FALSE(mine_.agent->limits().any());
}

TEST_P(PaceSimulation, APacedPostThatIsCancelledOrLateEndsAndTheRestIsNamed) {
  ASSERT_EQ(towline_agent_set_limit(&mine_.handle, TOWLINE_LIMIT_ALL, kRate), TOWLINE_OK);
  towline_post_t* const cancelled = post(0, 4096);
  for (int i = 0; i < 100; ++i) turn();
  ASSERT_EQ(towline_post_cancel(cancelled), TOWLINE_OK);
  for (int i = 0; i < 10; ++i) turn();
  expect_rest_named(cancelled, TOWLINE_CANCELLED, 0, 4096);
  const uint64_t deadline_ns = clock_.now_ns() + 2 * kMillisecondNs;
  towline_post_t* const late = post(4096, 4096, TOWLINE_PRIORITY_BULK, nullptr, nullptr, deadline_ns);
  while (clock_.now_ns() < deadline_ns + kMillisecondNs) turn();
  expect_rest_named(late, TOWLINE_TIMED_OUT, 4096, 4096);
}

INSTANTIATE_TEST_SUITE_P(, PaceSimulation, ::testing::Values(false, true),
                         [](const auto& one) { return std::string(one.param ? "framed" : "direct"); });

}  // namespace
}  // namespace towline
