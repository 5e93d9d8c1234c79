// Names and metadata with real processes: who speaks for an agent, agents that share a name, and crowds that
// nobody asked for.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <memory>
#include <span>
#include <string>
#include <thread>

#include "eventually.h"
#include "towline/towline.hpp"
#include "victim.h"

namespace towline::faults {
namespace {

using namespace std::chrono_literals;

template <class Ready>
bool soon(Ready&& ready) {
  const auto until = std::chrono::steady_clock::now() + 5s;
  while (!ready()) {
    if (std::chrono::steady_clock::now() >= until) return false;
    std::this_thread::yield();
  }
  return true;
}

// Runs stranger.cc; what it printed. `taken`: whether all that it sent was.
std::string run_stranger(const std::string& arguments, bool& taken) {
  FILE* pipe = popen((std::string(TOWLINE_STRANGER) + " " + arguments).c_str(), "r");
  if (pipe == nullptr) throw std::runtime_error("the stranger can't be started");
  std::string output;
  char bytes[4096];
  for (size_t count = 0; (count = fread(bytes, 1, sizeof bytes, pipe)) != 0;) output.append(bytes, count);
  const int status = pclose(pipe);
  taken = WIFEXITED(status) && WEXITSTATUS(status) == 0;
  return output;
}

std::string run_stranger(const std::string& arguments) {
  bool taken = false;
  const std::string output = run_stranger(arguments, taken);
  EXPECT_TRUE(taken) << output;
  return output;
}

// This process's side.
struct Side {
  explicit Side(const std::string& name, const std::string& backends = "tcp")
      : agent(name, {.listen = "127.0.0.1:0", .backends = backends}),
        memory(1 << 20),
        region(agent.register_memory(dram(memory), {.access = Access::kAll})) {}

  Transfer read_from(const Peer& peer, const Victim& victim) const {
    const auto* there = reinterpret_cast<const void*>(victim.memory());
    return agent.transfer(peer.block_list(Blocks::at(there, memory.size())),
                          agent.block_list(Blocks::at(memory.data(), memory.size())), {.timeout = 5s});
  }
  static Status run(const Transfer& transfer) {
    const Status posted = transfer.post();
    return posted == Status::kInProgress ? transfer.wait(5s) : posted;
  }
  bool echoes(const Peer& peer, const std::string& text) const {
    if (!soon([&] { return peer.send(text) == Status::kOk; })) return false;
    Notice notice;
    return soon([&] {
      (void)agent.wait(10ms);
      return agent.receive(notice) == Status::kOk && notice.text() == text;
    });
  }
  Status status_of_find(const std::string& name) const {
    try {
      return agent.find_peer(name).has_value() ? Status::kOk : Status::kNotFound;
    } catch (const Error& error) {
      return error.code();
    }
  }

  Agent agent;
  Memory memory;
  Region region;
};

TEST(Names, AStrangersMetadataNeitherEndsNorRedirectsAPeer) {
  const Side side("side");
  const Victim victim({.backends = "tcp", .config = {}});
  const Peer peer = side.agent.connect(victim.address());
  run_stranger("impersonate " + side.agent.address() + " " + victim.address());
  EXPECT_EQ(Side::run(side.read_from(peer, victim)), Status::kOk) << last_error();
  EXPECT_TRUE(side.echoes(peer, "still the same"));
}

TEST(Names, RegionsOfAnUnknownKindLeaveTheOthersUsable) {
  const Side side("side");
  const Victim victim({.backends = "tcp", .config = {}});
  const std::string newer = run_stranger("newer " + victim.address());
  const Peer peer = side.agent.add_peer(std::as_bytes(std::span(newer)));
  EXPECT_EQ(Side::run(side.read_from(peer, victim)), Status::kOk) << last_error();
}

// As the same program in two containers.
TEST(Names, TwoClientsThatShareANameAreBothServed) {
  const Victim victim({.backends = "tcp", .config = {}});
  const Side one("client");
  const Side two("client");
  const Peer from_one = one.agent.connect(victim.address());
  const Peer from_two = two.agent.connect(victim.address());
  const Transfer first = one.read_from(from_one, victim);
  const Transfer second = two.read_from(from_two, victim);
  for (int round = 0; round < 50; ++round) {
    ASSERT_EQ(Side::run(first), Status::kOk) << round << ": " << last_error();
    ASSERT_EQ(Side::run(second), Status::kOk) << round << ": " << last_error();
    ASSERT_TRUE(one.echoes(from_one, "one"));
    ASSERT_TRUE(two.echoes(from_two, "two"));
  }
}

TEST(Names, TwoServersThatShareANameAreBothReachedAndLookingTheNameUpSaysSo) {
  const Side side("side");
  auto one = std::make_unique<Victim>(VictimOptions{.backends = "tcp", .config = {}});
  const Victim two({.backends = "tcp", .config = {}});
  const Peer first = side.agent.connect(one->address());
  const Peer second = side.agent.connect(two.address());
  ASSERT_NE(first.incarnation(), second.incarnation());
  for (int round = 0; round < 20; ++round) {
    ASSERT_EQ(Side::run(side.read_from(first, *one)), Status::kOk) << last_error();
    ASSERT_EQ(Side::run(side.read_from(second, two)), Status::kOk) << last_error();
  }
  EXPECT_EQ(side.status_of_find("victim"), Status::kAlreadyExists);
  const auto found = side.agent.find_peer(std::string(first.incarnation()));
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->incarnation(), first.incarnation());
  one = nullptr;  // kill -9
  EXPECT_EQ(side.status_of_find("victim"), Status::kOk);
  EXPECT_EQ(side.agent.find_peer("victim")->incarnation(), second.incarnation());
}

// The old process is known to be gone when the new one shows up by itself.
TEST(Names, ARestartedPeerIsBelievedWhenItsOldProcessIsGone) {
  const Side side("side");
  auto victim = std::make_unique<Victim>(VictimOptions{.backends = "tcp", .config = {}});
  const Peer before = side.agent.connect(victim->address());
  const Transfer move = side.read_from(before, *victim);
  ASSERT_EQ(Side::run(move), Status::kOk) << last_error();
  victim = nullptr;  // kill -9
  victim = std::make_unique<Victim>(VictimOptions{.backends = "tcp", .config = {}});
  run_stranger("relay " + side.agent.address() + " " + victim->address());
  EXPECT_EQ(move.post(), Status::kPeerRestarted);
  const auto after = side.agent.find_peer("victim");
  ASSERT_TRUE(after.has_value());
  EXPECT_EQ(Side::run(side.read_from(*after, *victim)), Status::kOk) << last_error();
}

// Their names are theirs to choose, and there is room for a limited number of series.
TEST(Names, PeersThatNobodyAskedForShareOneSeriesOfCounters) {
  const Agent agent("asked", {.backends = "tcp"});
  Memory memory(4096);
  const Region region = agent.register_memory(dram(memory), {.access = Access::kAll});
  for (const char* name : {"uninvited-1", "uninvited-2"}) {
    const Agent stranger(name, {.listen = "none", .backends = "tcp"});
    const Peer peer = stranger.connect(agent.address());
    Memory own(4096);
    const Region mine = stranger.register_memory(dram(own), {.access = Access::kAll});
    const Transfer move = stranger.transfer(stranger.block_list(Blocks::at(own.data(), 4096)),
                                            peer.block_list(Blocks::at(memory.data(), 4096)));
    ASSERT_EQ(Side::run(move), Status::kOk) << last_error();
  }
  const std::string counters = agent.metrics();
  EXPECT_NE(counters.find("strangers"), std::string::npos) << counters;
  EXPECT_EQ(counters.find("uninvited"), std::string::npos) << counters;
}

TEST(Names, CrowdsOfStrangersTakeLittleMemoryAndDisturbNobody) {
  const Victim victim({.backends = "tcp", .config = {}});
  const Side side("side");
  const Peer peer = side.agent.connect(victim.address());
  const Transfer move = side.read_from(peer, victim);
  ASSERT_EQ(Side::run(move), Status::kOk) << last_error();
  run_stranger("crowd " + victim.address() + " 100 10");
  const uint64_t before = resident_bytes(victim.pid());
  run_stranger("crowd " + victim.address() + " 5000 10");
  run_stranger("crowd " + victim.address() + " 20 20000");
  const uint64_t after = resident_bytes(victim.pid());
  std::printf("    resident: %.1f MiB before, %.1f MiB after\n", static_cast<double>(before) / (1 << 20),
              static_cast<double>(after) / (1 << 20));
  EXPECT_LT(after, before + (uint64_t{16} << 20));
  EXPECT_EQ(Side::run(move), Status::kOk) << last_error();
  EXPECT_TRUE(side.echoes(peer, "served"));
  // More than all of them may take is refused with a word on where that is set.
  bool taken = true;
  const std::string why = run_stranger("crowd " + victim.address() + " 1 100000", taken);
  EXPECT_FALSE(taken);
  EXPECT_NE(why.find("tuning.peer.unsolicited_bytes"), std::string::npos) << why;
}

}  // namespace
}  // namespace towline::faults
