// Agents whose rails are connected and have nothing to do take no processor: their workers poll for `progress.spin`, then
// wait for completions. Where they wait at once, an application's polls do not take over from them.
#include <atomic>
#include <thread>

#include "support/quiet.h"
#include "towline/plan.hpp"
#include "transport_fixture.h"

namespace towline::conformance {
namespace {

class Idle : public ::testing::TestWithParam<const char*> {};

TEST_P(Idle, AgentsThatAreConnectedAndQuietTakeNoProcessor) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "UCX and libfabric have threads of their own, which ThreadSanitizer can't follow";
#endif
  constexpr uint64_t kBytes = 1 << 20;
  const AgentOptions options = {.listen = "127.0.0.1:0",
                                .backends = "rdma",
                                .config = "[tuning.rdma]\nrails = \"" + std::string(GetParam()) + "\"\n",
                                .default_timeout = 60s};
  std::vector<uint8_t> mine(kBytes, uint8_t{9});
  std::vector<uint8_t> theirs(kBytes);
  Agent left("left", options);
  Agent right("right", options);
  const Region from = left.register_memory(dram(mine.data(), kBytes));
  const Region to = right.register_memory(dram(theirs.data(), kBytes), {.access = Access::kAll});
  const Peer peer = left.add_peer(right.metadata());
  const Plan plan = left.plan(left.block_list(blocks_of(mine.data(), kBytes, kBytes)),
                              peer.block_list(blocks_of(theirs.data(), kBytes, kBytes)));
  for (int i = 0; i < 3; ++i) ASSERT_EQ(plan.post().wait(60s), Status::kOk) << last_error();
  ASSERT_EQ(theirs, mine);
  EXPECT_LT(towline::testing::processor_ms_while_quiet(), 20);
}

TEST(SleepsAtOnce, APollLeavesProgressToTheWorker) {
  constexpr uint64_t kBytes = 4 << 20;
  constexpr int kPosts = 20;
  const AgentOptions options = {.listen = "127.0.0.1:0",
                                .backends = "tcp",
                                .config = "progress.spin = \"0us\"\n",
                                .default_timeout = 60s};
  std::vector<uint8_t> mine(kBytes, uint8_t{9});
  std::vector<uint8_t> theirs(kBytes);
  Agent left("left", options);
  Agent right("right", options);
  const Region from = left.register_memory(dram(mine.data(), kBytes));
  const Region to = right.register_memory(dram(theirs.data(), kBytes), {.access = Access::kAll});
  const Peer peer = left.add_peer(right.metadata());
  const Plan plan = left.plan(left.block_list(blocks_of(mine.data(), kBytes, kBytes)),
                              peer.block_list(blocks_of(theirs.data(), kBytes, kBytes)));
  ASSERT_EQ(plan.post().wait(60s), Status::kOk) << last_error();  // the connection is up
  static std::thread::id poller;
  static std::atomic<int> told_by_poller;
  poller = std::this_thread::get_id();
  told_by_poller = 0;
  int polled = 0;
  for (int i = 0; i < kPosts; ++i) {
    const Post post = plan.post({.callback = [](const towline_completion_t*) {
      if (std::this_thread::get_id() == poller) ++told_by_poller;
    }});
    polled += post.poll() == Status::kInProgress ? 1 : 0;
    while (post.poll() == Status::kInProgress) std::this_thread::yield();
    ASSERT_EQ(post.poll(), Status::kOk) << last_error();
  }
  EXPECT_GT(polled, 0);
  EXPECT_EQ(told_by_poller, 0);
}

constexpr const char* kNames[] = {"ofi_tcp", "loopback", "ucx_tcp"};

INSTANTIATE_TEST_SUITE_P(Rails, Idle,
                         ::testing::Values("ofi:tcp;ofi_rxm@127.0.0.1", "loopback:idle", "ucx:tcp"),
                         [](const auto& tested) { return kNames[tested.index]; });

}  // namespace
}  // namespace towline::conformance
