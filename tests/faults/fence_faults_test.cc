// The remote fence with real processes: a network that keeps what was sent, and lets it go on when a new
// connection has long been up.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <thread>

#include "eventually.h"
#include "stalling_proxy.h"
#include "support/loopback.h"
#include "towline/queue.hpp"
#include "towline/towline.hpp"
#include "victim.h"

namespace towline::faults {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr uint64_t kSentBlock = 1 << 20;
constexpr const char* kFourSockets = "[tuning.tcp]\nsockets = 4\nbulk_bytes = \"64KiB\"\n";

Status run(const Transfer& transfer) {
  const Status posted = transfer.post();
  return posted == Status::kInProgress ? transfer.wait(20s) : posted;
}

TEST(RemoteFence, WhatStoodStillOnTheWayDoesNotLandOnceItIsFenced) {
  const uint16_t port = support::free_port();
  StallingProxy network(port);
  const Victim owner({.backends = "tcp",
                      .config = std::string(kFourSockets) + "[tcp]\nport_range = \"" + std::to_string(port) +
                                "-" + std::to_string(port) + "\"\nadvertise = \"" +
                                support::loopback_address(network.port()) + "\"\n",
                      .shared_memory = false});
  // Gives up long before the owner does.
  const Agent writer("writer", {.listen = "none",
                                .backends = "tcp",
                                .config = std::string(kFourSockets) +
                                          "[peer]\nheartbeat = \"50ms\"\nsuspect = \"150ms\"\nlost = "
                                          "\"400ms\"\n"});
  Memory memory(kVictimBytes);
  const Region region = writer.register_memory(dram(memory), {.access = Access::kAll});
  const Peer peer = writer.connect(owner.address());
  const BlockList mine = writer.block_list(blocks_of(memory.data(), kVictimBytes, kSentBlock));
  const BlockList theirs =
      peer.block_list(blocks_of(reinterpret_cast<const void*>(owner.memory()), kVictimBytes, kSentBlock));
  std::fill_n(memory.data(), kVictimBytes, std::byte{0xaa});
  const Transfer old = writer.transfer(mine, theirs, {.timeout = 20s});
  ASSERT_EQ(run(old), Status::kOk) << last_error();  // all sockets are up

  network.stall();
  ASSERT_EQ(old.post(), Status::kInProgress);
  ASSERT_EQ(old.wait(10s), Status::kPeerLost);
  ASSERT_TRUE(eventually([&] { return old.wait_fenced(Fence::kLocal, 0s) == Status::kOk; }, 5s));
  EXPECT_EQ(old.wait_fenced(Fence::kRemote, 0s), Status::kNotYet) << "nobody can know that yet";
  EXPECT_GT(network.kept_bytes(), kSentBlock);

  const auto back_at = Clock::now();
  std::fill_n(memory.data(), kVictimBytes, std::byte{0xbb});
  const Transfer fresh = writer.transfer(mine, theirs, {.timeout = 20s});
  ASSERT_EQ(old.wait_fenced(Fence::kBoth, 5s), Status::kOk);
  std::printf("    fenced on both sides %lld ms after the new connection was begun\n",
              static_cast<long long>(
                  std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - back_at).count()));
  ASSERT_EQ(run(fresh), Status::kOk) << last_error();

  network.release();
  ASSERT_TRUE(eventually([&] { return network.all_ended(); }, 20s));
  const Transfer back = writer.transfer(theirs, mine, {.timeout = 20s});
  std::fill_n(memory.data(), kVictimBytes, std::byte{0});
  ASSERT_EQ(run(back), Status::kOk) << last_error();
  const auto old_bytes = std::count(memory.data(), memory.data() + kVictimBytes, std::byte{0xaa});
  EXPECT_EQ(old_bytes, 0) << "bytes of the WRITE that was lost landed after its fence";
  EXPECT_EQ(std::count(memory.data(), memory.data() + kVictimBytes, std::byte{0xbb}),
            static_cast<ptrdiff_t>(kVictimBytes));
}

// Each way of waiting connects to ask the peer: nothing else is posted.
class RemoteFenceAfterALoss : public ::testing::Test {
 protected:
  RemoteFenceAfterALoss() {
    std::fill_n(memory_.data(), kVictimBytes, std::byte{0xaa});
    EXPECT_EQ(plan_.post().wait(20s), Status::kOk) << last_error();  // all sockets are up
    network_.stall();
  }

  const uint16_t port_ = support::free_port();
  StallingProxy network_{port_};
  const Victim owner_{{.backends = "tcp",
                       .config = std::string(kFourSockets) + "[tcp]\nport_range = \"" +
                                 std::to_string(port_) + "-" + std::to_string(port_) + "\"\nadvertise = \"" +
                                 support::loopback_address(network_.port()) + "\"\n",
                       .shared_memory = false}};
  const Agent writer_{
      "writer",
      {.listen = "none",
       .backends = "tcp",
       .config = std::string(kFourSockets) + "[peer]\nheartbeat = \"50ms\"\nsuspect = \"150ms\"\nlost = "
                                             "\"400ms\"\n"}};
  Memory memory_{kVictimBytes};
  const Region region_ = writer_.register_memory(dram(memory_), {.access = Access::kAll});
  const Peer peer_ = writer_.connect(owner_.address());
  const Plan plan_ = writer_.plan(
      writer_.block_list(blocks_of(memory_.data(), kVictimBytes, kSentBlock)),
      peer_.block_list(blocks_of(reinterpret_cast<const void*>(owner_.memory()), kVictimBytes, kSentBlock)));
};

TEST_F(RemoteFenceAfterALoss, APostThatIsNotFencedDoesNotSayWhatMovedAsIfItKnew) {
  const Post cancelled = plan_.post();
  ASSERT_TRUE(eventually([&] { return network_.kept_bytes() > kSentBlock; })) << "nothing is under way";
  cancelled.cancel();
  ASSERT_EQ(cancelled.wait(10s), Status::kCancelled);
  EXPECT_NE(cancelled.error().find("at least 0 bytes have moved; the local memory is not fenced yet"),
            std::string::npos)
      << cancelled.error();
}

TEST_F(RemoteFenceAfterALoss, APostsWaitAsksThePeer) {
  const Post lost = plan_.post();
  ASSERT_EQ(lost.wait(10s), Status::kPeerLost);
  EXPECT_EQ(lost.wait_fenced(Fence::kRemote, 10s), Status::kOk);
}

TEST_F(RemoteFenceAfterALoss, AGroupsWaitAsksThePeer) {
  const Group group = writer_.group();
  ASSERT_TRUE(group.post(plan_).accepted()) << last_error();
  ASSERT_EQ(group.wait(10s), Status::kPeerLost);
  EXPECT_EQ(group.wait_fenced(Fence::kRemote, 10s), Status::kOk);
}

TEST_F(RemoteFenceAfterALoss, AnEventOfTheFenceAsksThePeer) {
  const Queue queue{writer_};
  const Post lost = plan_.post();
  ASSERT_EQ(lost.wait(10s), Status::kPeerLost);
  queue.fence(lost, Fence::kRemote, nullptr);
  ASSERT_EQ(queue.wait(10s), Status::kOk);
  for (const Event& event : queue.ready()) {
    EXPECT_EQ(event.kind, TOWLINE_EVENT_FENCED);
    EXPECT_EQ(event.status, TOWLINE_OK);
  }
}

}  // namespace
}  // namespace towline::faults
