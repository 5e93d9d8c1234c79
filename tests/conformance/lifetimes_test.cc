// Lifetimes: owners of memory live until nothing uses it, and objects that were made from an agent outlive the agent.
#include <atomic>
#include <cstring>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "transport_fixture.h"

namespace towline::conformance {
namespace {

constexpr uint64_t kBytes = 1 << 16;

// Its peer makes no progress by itself, and so lets go of a region only when it is told to.
class Lifetimes : public ::testing::Test {
 protected:
  Lifetimes() {
    region_.emplace(owner_->register_memory(memory_, {.access = Access::kAll}));
    memory_.reset();
    mine_region_.emplace(visitor_.register_memory(dram(mine_)));
    peer_.emplace(visitor_.add_peer(owner_->metadata()));
    move_.emplace(visitor_.transfer(Op::write, visitor_.block_list(blocks_of(mine_.data(), kBytes, 4096)),
                                    peer_->block_list(blocks_of(seen_.lock()->data(), kBytes, 4096))));
    Status status = move_->post();
    if (status == Status::kInProgress) status = move_->wait(30s);
    EXPECT_EQ(status, Status::kOk) << last_error();
  }

  std::shared_ptr<Memory> memory_ = std::make_shared<Memory>(kBytes);
  const std::weak_ptr<Memory> seen_ = memory_;
  std::optional<Agent> owner_{std::in_place, "owner", AgentOptions{.listen = "none", .backends = "shm"}};
  Agent visitor_{"visitor", {.progress = Progress::kCaller, .listen = "none", .backends = "shm"}};
  std::vector<std::byte> mine_ = std::vector<std::byte>(kBytes);
  std::optional<Region> region_, mine_region_;
  std::optional<Peer> peer_;
  std::optional<Transfer> move_;
};

TEST_F(Lifetimes, AnOwnerLivesUntilThePeersHaveLetGo) {
  region_.reset();
  ASSERT_FALSE(seen_.expired()) << "a peer has it mapped";
  EXPECT_NE(move_->post(), Status::kInternal);
  const Deadline deadline{std::chrono::steady_clock::now() + 60s};
  while (!seen_.expired() && deadline.remaining_ns() != 0) {
    visitor_.progress();
    std::this_thread::yield();
  }
  EXPECT_TRUE(seen_.expired());
}

TEST_F(Lifetimes, AnOwnerLivesNoLongerThanTheAgent) {
  region_.reset();
  ASSERT_FALSE(seen_.expired());
  owner_.reset();
  EXPECT_TRUE(seen_.expired());
}

TEST_F(Lifetimes, ARegionDroppedAfterItsAgentLetsGoAtOnce) {
  owner_.reset();
  ASSERT_FALSE(seen_.expired());
  region_.reset();
  EXPECT_TRUE(seen_.expired());
}

TEST_F(Lifetimes, DeregisteringLetsGoOfTheOwner) {
  std::thread visitor([this] {
    const Deadline deadline{std::chrono::steady_clock::now() + 60s};
    while (!seen_.expired() && deadline.remaining_ns() != 0) visitor_.progress();
  });
  EXPECT_EQ(region_->deregister(60s), Status::kOk);
  EXPECT_TRUE(seen_.expired());
  visitor.join();
}

template <class Call>
Status code_of(const Call& call) {
  try {
    (void)call();
    return Status::kOk;
  } catch (const Error& error) {
    return error.code();
  }
}

TEST(AfterTheAgent, WhatWasMadeFromItAnswersClosed) {
  const Agent far("far", {.listen = "none"});
  const Memory memory(kBytes);
  const Memory mine(kBytes);
  const Region theirs = far.register_memory(dram(memory), {.access = Access::kAll, .name = "kv"});
  std::optional<Agent> agent(std::in_place, "near", AgentOptions{.listen = "none"});
  Region region = agent->register_memory(dram(mine), {.name = "kv"});
  Peer peer = agent->add_peer(far.metadata());
  const View there = peer.region("kv");
  const BlockList from = agent->block_list(blocks_of(mine.data(), kBytes, 4096));
  const BlockList to = peer.block_list(blocks_of(memory.data(), kBytes, 4096));
  const Plan plan = agent->plan(from, to);
  const Group group = agent->group();
  agent.reset();
  EXPECT_EQ(code_of([&] { return peer.block_list(blocks_of(memory.data(), kBytes, 4096)); }),
            Status::kClosed);
  EXPECT_EQ(code_of([&] { return peer.refresh(1s), 0; }), Status::kClosed);
  EXPECT_EQ(peer.send("late"), Status::kClosed);
  EXPECT_EQ(peer.add(1, 1), Status::kClosed);
  EXPECT_EQ(plan.post(PostOptions{}).poll(), Status::kClosed);
  EXPECT_EQ(code_of([&] { return group.copy(region.view(), there); }), Status::kClosed);
  EXPECT_EQ(region.deregister(1s), Status::kOk);
}

TEST(AfterTheAgent, ANoticeMayOutliveIt) {
  const Agent near("near", {.listen = "none"});
  std::optional<Agent> far(std::in_place, "far", AgentOptions{.listen = "none"});
  const Peer peer = near.add_peer(far->metadata());
  Status sent = Status::kAgain;
  const Deadline deadline{std::chrono::steady_clock::now() + 60s};
  while (sent == Status::kAgain && deadline.remaining_ns() != 0) sent = peer.send("hello");
  ASSERT_EQ(sent, Status::kOk);
  Notice notice;
  while (far->receive(notice) != Status::kOk) ASSERT_EQ(far->wait(60s), Status::kOk);
  far.reset();
  EXPECT_EQ(notice.text(), "hello");
}

TEST(AfterTheAgent, ItIsClosedWhileOtherThreadsUseIt) {
  const Agent far("far", {.listen = "none"});
  const Memory memory(kBytes);
  const Region theirs = far.register_memory(dram(memory), {.access = Access::kAll});
  Agent agent("near", {.listen = "none", .backends = "memory"});
  const auto mine = std::make_shared<Memory>(kBytes);
  const Region region = agent.register_memory(mine);
  const Peer peer = agent.add_peer(far.metadata());
  const Plan plan = agent.plan(agent.block_list(blocks_of(mine->data(), kBytes, 4096)),
                               peer.block_list(blocks_of(memory.data(), kBytes, 4096)));
  std::atomic<int> working{0};
  std::atomic<int32_t> odd{0};  // a status that no call should have given
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      bool counted = false;
      for (Status status = Status::kOk; status != Status::kClosed;) {
        if (i == 0) {
          status = plan.post(PostOptions{}).wait(60s);
        } else if (i == 1) {
          status = peer.send("x");
        } else if (i == 2) {
          status = code_of([&] { return agent.block_list(blocks_of(mine->data(), kBytes, 4096)); });
        } else {
          status = code_of([&] { return agent.register_memory(std::make_shared<Memory>(4096)); });
        }
        const bool expected = status == Status::kOk || status == Status::kAgain ||
                              status == Status::kClosed || status == Status::kStale ||
                              status == Status::kOutOfRange;
        if (!expected) odd = static_cast<int32_t>(status) * 10 - i;
        if (!counted) ++working, counted = true;
      }
    });
  }
  while (working.load() < 4) std::this_thread::yield();
  std::thread other([&] { agent.close(); });
  agent.close();
  other.join();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(odd.load() / 10, 0) << "of thread " << -odd.load() % 10;
}

}  // namespace
}  // namespace towline::conformance
