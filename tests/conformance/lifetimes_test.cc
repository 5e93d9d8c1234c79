// Lifetimes: owners of memory live until nothing uses it, and objects that were made from an agent outlive the agent.
#include <atomic>
#include <cstring>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "towline/queue.hpp"
#include "transport_fixture.h"

namespace towline::conformance {
namespace {

constexpr uint64_t kMoved = 1 << 16;

// Its peer makes no progress by itself, and so lets go of a region only when it is told to.
class Lifetimes : public ::testing::Test {
 protected:
  Lifetimes() {
    region_.emplace(owner_->register_memory(memory_, {.access = Access::kAll}));
    memory_.reset();
    mine_region_.emplace(visitor_.register_memory(dram(mine_)));
    peer_.emplace(visitor_.add_peer(owner_->metadata()));
    move_.emplace(visitor_.transfer(visitor_.block_list(blocks_of(mine_.data(), kMoved, 4096)),
                                    peer_->block_list(blocks_of(seen_.lock()->data(), kMoved, 4096))));
    Status status = move_->post();
    if (status == Status::kInProgress) status = move_->wait(30s);
    EXPECT_EQ(status, Status::kOk) << last_error();
  }

  std::shared_ptr<Memory> memory_ = std::make_shared<Memory>(kMoved);
  const std::weak_ptr<Memory> seen_ = memory_;
  std::optional<Agent> owner_{std::in_place, "owner", AgentOptions{.listen = "none", .backends = "shm"}};
  Agent visitor_{"visitor", {.progress = Progress::kCaller, .listen = "none", .backends = "shm"}};
  std::vector<std::byte> mine_ = std::vector<std::byte>(kMoved);
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
  const Memory memory(kMoved);
  const Memory mine(kMoved);
  const Region theirs = far.register_memory(dram(memory), {.access = Access::kAll, .name = "kv"});
  std::optional<Agent> agent(std::in_place, "near", AgentOptions{.listen = "none"});
  Region region = agent->register_memory(dram(mine), {.name = "kv"});
  Peer peer = agent->add_peer(far.metadata());
  const View there = peer.region("kv");
  const BlockList from = agent->block_list(blocks_of(mine.data(), kMoved, 4096));
  const BlockList to = peer.block_list(blocks_of(memory.data(), kMoved, 4096));
  const Plan plan = agent->plan(from, to);
  const Group group = agent->group();
  agent.reset();
  EXPECT_EQ(code_of([&] { return peer.block_list(blocks_of(memory.data(), kMoved, 4096)); }),
            Status::kClosed);
  EXPECT_EQ(code_of([&] { return peer.refresh(1s), 0; }), Status::kClosed);
  EXPECT_EQ(peer.send("late"), Status::kClosed);
  EXPECT_EQ(peer.add(1, 1), Status::kClosed);
  EXPECT_EQ(plan.post(PostOptions{}).poll(), Status::kClosed);
  EXPECT_EQ(code_of([&] { return group.copy(region.view(), there); }), Status::kClosed);
  EXPECT_EQ(region.deregister(1s), Status::kOk);
}

TEST(AfterTheAgent, APeerThatIsAllThatIsLeftAnswersClosed) {
  const Agent far("far", {.listen = "none"});
  const Memory memory(kMoved);
  const Region theirs = far.register_memory(dram(memory), {.access = Access::kAll});
  std::optional<Agent> agent(std::in_place, "near", AgentOptions{.listen = "none"});
  Peer peer = agent->add_peer(far.metadata());
  agent.reset();
  const Agent another("another", {.listen = "none"});  // has the memory of a handle that was freed too early
  EXPECT_EQ(code_of([&] { return peer.block_list(blocks_of(memory.data(), kMoved, 4096)); }),
            Status::kClosed);
  EXPECT_EQ(code_of([&] { return peer.refresh(1s), 0; }), Status::kClosed);
}

// A plan makes a post of its pool when all that it has are held.
TEST(AfterTheAgent, APostThatIsMadeAnewAnswersClosed) {
  for (const char* backend : {"memory", "tcp"}) {
    const Agent far("far", {.listen = "127.0.0.1:0"});
    const Memory memory(kMoved);
    const Memory mine(kMoved);
    const Region theirs = far.register_memory(dram(memory), {.access = Access::kAll});
    Agent agent("near", {.listen = "none", .backends = backend});
    const Region region = agent.register_memory(dram(mine));
    const Peer peer = agent.add_peer(far.metadata());
    const Plan plan = agent.plan(agent.block_list(blocks_of(mine.data(), kMoved, 4096)),
                                 peer.block_list(blocks_of(memory.data(), kMoved, 4096)));
    const Post held = plan.post(PostOptions{});
    ASSERT_EQ(held.wait(60s), Status::kOk) << held.error();
    agent.close();
    const Post late = plan.post(PostOptions{});
    EXPECT_FALSE(late.accepted()) << backend;
    EXPECT_EQ(late.wait(60s), Status::kClosed) << backend;
  }
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

// What threads do with an agent until it is closed under them, each again and again. Posts are of pages of their own.
class ClosedInUse : public ::testing::TestWithParam<const char*> {
 public:
  Status post_a_plan() { return plan_.post(pages(0)).wait(60s); }
  Status post_a_group() {
    return code_of([&] {
      const Group group = agent_.group();
      for (int i = 0; i < 2; ++i)
        if (const Status joined = group.add(plan_, pages(4 + 4 * i));
            joined == Status::kAgain || joined == Status::kClosed) {
          group.cancel();
          (void)group.wait_fenced(Fence::kBoth, 60s);  // the next one writes the same pages
          return detail::check(static_cast<int32_t>(joined));
        }
      group.close();
      detail::check(static_cast<int32_t>(group.wait(60s)));
    });
  }
  Status copy() {
    return code_of([&] {
      detail::check(
          static_cast<int32_t>(agent_.copy(from_[Range{12, 1, 4}], to_[Range{12, 1, 4}]).wait(60s)));
    });
  }
  Status send() { return peer_.send("x"); }
  Status make_a_list() {
    return code_of([&] { return agent_.block_list(blocks_of(mine_->data(), kMoved, 4096)); });
  }
  Status register_more() {
    return code_of([&] { return agent_.register_memory(std::make_shared<Memory>(4096)); });
  }
  Status wait_at_a_queue() {
    return code_of([&] {
      const Queue queue{agent_};
      const Counter counter = agent_.counter();
      queue.reached(counter, 1, nullptr);
      const Status waited = queue.wait(1ms);
      detail::check(static_cast<int32_t>(waited == Status::kNotYet ? Status::kOk : waited));
    });
  }

  static PostOptions pages(uint64_t first) { return {.from = Range{first, 1, 4}, .to = Range{first, 1, 4}}; }
  static AgentOptions options(const char* listen) { return {.listen = listen, .backends = GetParam()}; }

  Agent far_{"far", options(GetParam() == std::string("tcp") ? "127.0.0.1:0" : "none")};
  std::shared_ptr<Memory> memory_ = std::make_shared<Memory>(kMoved);
  Region theirs_ = far_.register_memory(memory_, {.access = Access::kAll});
  Agent agent_{"near", options("none")};
  std::shared_ptr<Memory> mine_ = std::make_shared<Memory>(kMoved);
  Region region_ = agent_.register_memory(mine_);
  Peer peer_ = agent_.add_peer(far_.metadata());
  BlockList from_ = agent_.block_list(blocks_of(mine_->data(), kMoved, 4096));
  BlockList to_ = peer_.block_list(blocks_of(memory_->data(), kMoved, 4096));
  Plan plan_ = agent_.plan(from_, to_);
};

TEST_P(ClosedInUse, EachCallEndsAsItShould) {
  using Use = Status (ClosedInUse::*)();
  const std::pair<const char*, Use> uses[] = {
      {"post_a_plan", &ClosedInUse::post_a_plan},
      {"post_a_group", &ClosedInUse::post_a_group},
      {"copy", &ClosedInUse::copy},
      {"send", &ClosedInUse::send},
      {"make_a_list", &ClosedInUse::make_a_list},
      {"register_more", &ClosedInUse::register_more},
      {"wait_at_a_queue", &ClosedInUse::wait_at_a_queue},
  };
  std::atomic<size_t> working{0};
  std::vector<std::thread> threads;
  for (const auto& [name, use] : uses) {
    threads.emplace_back([&, name = name, use = use] {
      bool counted = false;
      for (Status status = Status::kOk; status != Status::kClosed;) {
        status = (this->*use)();
        EXPECT_TRUE(status == Status::kOk || status == Status::kAgain || status == Status::kClosed ||
                    status == Status::kStale || status == Status::kOutOfRange)
            << name << ": " << status_text(status);
        if (!counted) ++working, counted = true;
      }
    });
  }
  while (working.load() < std::size(uses)) std::this_thread::yield();
  std::thread other([&] { agent_.close(); });
  agent_.close();
  other.join();
  for (std::thread& thread : threads) thread.join();
}

INSTANTIATE_TEST_SUITE_P(Over, ClosedInUse, ::testing::Values("memory", "shm", "tcp"),
                         [](const auto& of) { return std::string(of.param); });

}  // namespace
}  // namespace towline::conformance
