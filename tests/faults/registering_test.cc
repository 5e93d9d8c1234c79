// Transfers that wait while huge memory is registered in the background (tuning.rdma.background_bytes): whatever ends
// them ends them in time, with a sentence of its own, and long before the registration is made.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <optional>
#include <thread>

#include "eventually.h"
#include "towline/towline.hpp"
#include "victim.h"

namespace towline::faults {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

// Rails of this process alone: nothing moves, since the memory is never there in time.
constexpr auto kOursTakes = 2500ms;
constexpr const char* kOurs = "loopback:registering?register_ms=2500";
constexpr const char* kTheirs = "loopback:registering?register_ms=600000";
constexpr const char* kQuick = "loopback:registering";
constexpr uint64_t kRegisteredBytes = 1 << 20;
// What a busy machine needs beside the promised time.
constexpr auto kSlack = 1s;

AgentOptions over(const char* rails) {
  return {.listen = "127.0.0.1:0",
          .backends = "rdma",
          .config = std::string("[peer]\nheartbeat = \"50ms\"\nsuspect = \"150ms\"\nlost = \"400ms\"\n"
                                "[tuning.connection]\nwait = \"0s\"\n"
                                "[tuning.rdma]\nbackground_bytes = \"1\"\nrails = \"") +
                    rails + "\"\n",
          .default_timeout = 20s};
}

struct WhoRegisters {
  const char* name;
  const char* our_rails;
  const char* their_rails;
  const char* waits_for;  // as it is told
};
void PrintTo(const WhoRegisters& side, std::ostream* out) { *out << side.name; }

const WhoRegisters kWhoRegisters[] = {
    {"here", kOurs, kQuick, "waits until this agent has registered the region with its rails"},
    {"there", kQuick, kTheirs, "waits until the peer has registered the region with its rails"},
};

class Registering : public ::testing::TestWithParam<WhoRegisters> {
 protected:
  Registering()
      : victim_({.backends = "rdma", .config = over(GetParam().their_rails).config, .shared_memory = false}),
        agent_(std::in_place, "waiting", over(GetParam().our_rails)),
        memory_(kRegisteredBytes),
        region_(agent_->register_memory(dram(memory_.data(), kRegisteredBytes), {.access = Access::kAll})),
        peer_(agent_->connect(victim_.address())) {}

  // The first one is made while the connection comes up, so that its posts wait for the memory.
  Transfer write(TransferOptions options = {}) {
    return agent_->transfer(
        agent_->block_list(Blocks::at(memory_.data(), kRegisteredBytes)),
        peer_.block_list(Blocks::at(reinterpret_cast<const void*>(victim_.memory()), kRegisteredBytes)),
        options);
  }
  // Posted, and waiting for the memory.
  Transfer waiting(TransferOptions options = {}) {
    Transfer transfer = write(options);
    EXPECT_EQ(transfer.post(), Status::kInProgress) << last_error();
    EXPECT_EQ(transfer.wait(100ms), Status::kNotYet);
    return transfer;
  }
  void expect_ended(const Transfer& transfer, Status outcome, Clock::time_point since,
                    Clock::duration limit) {
    EXPECT_EQ(transfer.wait(20s), outcome) << last_error();
    const std::string why{last_error()};
    EXPECT_LT(Clock::now() - since, limit + kSlack);
    EXPECT_NE(why.find(status_text(outcome)), std::string::npos) << why;
    EXPECT_NE(why.find("0 bytes have moved"), std::string::npos) << why;
    EXPECT_EQ(transfer.wait_fenced(Fence::kBoth, kSlack), Status::kOk) << "nothing is under way";
  }

  Victim victim_;
  std::optional<Agent> agent_;
  std::vector<std::byte> memory_;
  Region region_;
  Peer peer_;
};

TEST_P(Registering, TheDeadlineEndsAPostThatWaitsForIt) {
  const auto began = Clock::now();
  const Transfer transfer = waiting({.timeout = 300ms});
  expect_ended(transfer, Status::kTimedOut, began, 300ms);
  (void)transfer.wait(0s);
  EXPECT_NE(last_error().find(GetParam().waits_for), std::string::npos) << last_error();
}

TEST_P(Registering, TheDeadlineEndsTheMakingOfATransferThatWaitsForIt) {
  (void)waiting();  // it is connected from here on
  const auto began = Clock::now();
  try {
    (void)write({.timeout = 300ms});
    ADD_FAILURE() << "made before the memory is registered";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Status::kTimedOut);
    EXPECT_NE(std::string(error.what()).find(GetParam().waits_for), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("the deadline has passed"), std::string::npos) << error.what();
  }
  EXPECT_LT(Clock::now() - began, 300ms + kSlack);
}

TEST_P(Registering, ACancelEndsAPostThatWaitsForIt) {
  const Transfer transfer = waiting();
  const auto began = Clock::now();
  EXPECT_EQ(transfer.cancel(), Status::kOk);
  expect_ended(transfer, Status::kCancelled, began, 0s);
}

TEST_P(Registering, TheDeathOfThePeerEndsAPostThatWaitsForIt) {
  const Transfer transfer = waiting();
  const auto began = Clock::now();
  victim_.kill_hard();
  expect_ended(transfer, Status::kPeerLost, began, 0s);
}

TEST_P(Registering, APeerThatIsStoppedIsLostThoughAPostWaitsForIt) {
  const Transfer transfer = waiting();
  const auto began = Clock::now();
  victim_.signal(SIGSTOP);
  expect_ended(transfer, Status::kPeerLost, began, 400ms);
}

// close() itself waits for what this agent's rails have begun to register: nobody can call that back.
TEST_P(Registering, ClosingTheAgentEndsWhatWaitsForItAndWaitsOnlyForWhatHasBegun) {
  const Transfer transfer = waiting();
  const auto began = Clock::now();
  std::thread closing([&] { agent_->close(); });
  EXPECT_EQ(transfer.wait(20s), Status::kClosed) << last_error();
  EXPECT_LT(Clock::now() - began, kSlack);
  closing.join();
  EXPECT_LT(Clock::now() - began, (GetParam().our_rails == kOurs ? kOursTakes : Clock::duration{}) + kSlack);
}

TEST_P(Registering, ClosingTheAgentEndsTheMakingOfATransferThatWaitsForIt) {
  (void)waiting();
  Status made = Status::kOk;
  Clock::time_point ended;
  std::atomic<bool> making{false};
  std::thread thread([&] {
    try {
      making = true;
      (void)write();
    } catch (const Error& error) {
      made = error.code();
      EXPECT_NE(std::string(error.what()).find("has been closed"), std::string::npos) << error.what();
    }
    ended = Clock::now();
  });
  ASSERT_TRUE(eventually([&] { return making.load(); }));
  const auto began = Clock::now();
  agent_->close();
  thread.join();
  EXPECT_EQ(made, Status::kClosed);
  EXPECT_LT(ended - began, kSlack);
}

INSTANTIATE_TEST_SUITE_P(Memory, Registering, ::testing::ValuesIn(kWhoRegisters),
                         [](const auto& of) { return of.param.name; });

// The agent's threads make four at once.
TEST(RegisteringMuch, ClosingTheAgentLeavesOutRegistrationsThatHaveNotBegun) {
  constexpr auto kEach = 1500ms;
  std::array<std::vector<std::byte>, 12> memory;
  std::vector<Region> regions;
  Agent agent("closing", over("loopback:registering?register_ms=1500"));
  for (auto& bytes : memory) {
    bytes.resize(kRegisteredBytes);
    regions.push_back(agent.register_memory(dram(bytes.data(), kRegisteredBytes), {.access = Access::kAll}));
  }
  const auto began = Clock::now();
  agent.close();
  EXPECT_LT(Clock::now() - began, kEach + kSlack);
}

}  // namespace
}  // namespace towline::faults
