// A peer that stands still and takes no notices: its sender waits for credit, and neither spins nor waits longer than
// the peer is known.
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <string>

#include "towline/queue.hpp"
#include "towline/towline.hpp"
#include "victim.h"

namespace towline::faults {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

// What refuses is the connection, which is full, long before the peer's credit is used up.
TEST(CreditFaults, APeerThatStandsStillIsNotTriedAgainAndAgainAndItsLossIsToldByName) {
  const Victim stopped({.backends = "tcp", .shared_memory = false});
  const Agent agent("sender",
                    {.listen = "none",
                     .backends = "tcp",
                     .config = "[peer]\nheartbeat = \"50ms\"\nsuspect = \"150ms\"\nlost = \"400ms\"\n"});
  Memory memory(kVictimBytes);
  const Region region = agent.register_memory(dram(memory));
  const Peer peer = agent.connect(stopped.address());
  const Plan plan =
      agent.plan(agent.block_list(blocks_of(memory.data(), kVictimBytes, kVictimBytes)),
                 peer.block_list(Blocks::at(reinterpret_cast<const void*>(stopped.memory()), kVictimBytes)));
  ASSERT_EQ(plan.post().wait(20s), Status::kOk) << last_error();
  stopped.signal(SIGSTOP);
  const Post stuck = plan.post();
  ASSERT_TRUE(stuck.accepted()) << last_error();

  const std::string notice(60000, 'n');
  const Queue queue{agent};
  int tries = 0;
  Status status = Status::kOk;
  std::string why;
  const auto since = Clock::now();
  while (status == Status::kOk && !HasFailure()) {
    const auto passed = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - since);
    status = peer.send(notice);
    why = last_error();
    if (status != Status::kAgain) continue;
    EXPECT_LE(++tries, passed.count() + 2) << "tries in so many milliseconds";
    queue.credit(peer, nullptr);
    ASSERT_EQ(queue.wait(20s), Status::kOk);
    for (const Event& event : queue.ready()) {
      status = event.outcome();
      why = event.error();
    }
  }
  std::printf("    tried %d times, then: %s %s\n", tries, status_name(status), why.c_str());
  EXPECT_GT(tries, 0);
  EXPECT_NE(why.find("peer 'victim'"), std::string::npos) << why;
  stopped.signal(SIGCONT);
}

}  // namespace
}  // namespace towline::faults
