// Promises 5 to 9 and 13 with real processes. Prints how long it took to notice and to fence.
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <thread>

#include "belongings.h"
#include "eventually.h"
#include "poster.h"
#include "towline/towline.hpp"
#include "victim.h"
#include "ways.h"

namespace towline::faults {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

// A guest without KVM is many times slower, its processes too.
const bool kSlow = std::getenv("RDMA_TEST_SLOW") != nullptr;
const char* const kQuickHeartbeat =
    kSlow ? "[peer]\nheartbeat = \"500ms\"\nsuspect = \"1500ms\"\nlost = \"4s\"\n"
          : "[peer]\nheartbeat = \"50ms\"\nsuspect = \"150ms\"\nlost = \"400ms\"\n";

// "At once": a few times what a busy machine needs to end a process and wake the others. The same is granted on top
// of the times to notice that kQuickHeartbeat promises.
const double kAtOnceMs = kSlow ? 10'000 : 1000;
const double kSuspectMs = (kSlow ? 1500 + 500 : 150 + 50) + kAtOnceMs;
const double kLostMs = (kSlow ? 4000 + 500 : 400 + 50) + kAtOnceMs;
// For 64 MiB, where nothing is wrong.
const auto kMoveLimit = kSlow ? 60s : 5s;

double milliseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

// This process's side: an agent with memory of the same size as the victim's.
class Survivor {
 public:
  explicit Survivor(const Way& way, const std::string& more_config = {}, const std::string& listen = {},
                    uint32_t workers = 0)
      : agent_("survivor", {.workers = workers,
                            .listen = listen.empty() ? way.listen : listen,
                            .backends = way.backends,
                            .config = way.config + more_config}),
        memory_(kVictimBytes),
        kind_(way.kind),
        region_(agent_.register_memory({.address = memory_.data(), .bytes = kVictimBytes, .kind = kind_},
                                       {.access = Access::kAll})) {}

  Transfer write_to(const Peer& peer, const Victim& victim, const TransferOptions& options = {}) const {
    return agent_.transfer(agent_.block_list(blocks_at(memory_.data())),
                           peer.block_list(blocks_at(reinterpret_cast<const void*>(victim.memory()))),
                           options);
  }
  static Status run(const Transfer& transfer, Clock::duration limit = 20s) {
    const Status posted = transfer.post();
    return posted == Status::kInProgress ? transfer.wait(limit) : posted;
  }
  bool echoes(const Peer& peer, const std::string& text) const {
    if (!eventually([&] { return peer.send(text) == Status::kOk; })) return false;
    Notice notice;
    return eventually([&] {
      (void)agent_.wait(10ms);
      return agent_.receive(notice) == Status::kOk && notice.text() == text;
    });
  }

  Agent agent_;
  Memory memory_;
  const Kind kind_;
  Region region_;

 private:
  [[nodiscard]] Blocks blocks_at(const void* memory) const {
    constexpr uint64_t kBlock = 1 << 20;
    return Blocks::at(memory, kBlock, kind_).repeat(kVictimBytes / kBlock, kBlock);
  }
};

class Faults : public ::testing::TestWithParam<Way> {
 protected:
  [[nodiscard]] VictimOptions victim_options(const std::string& more_config = {}) const {
    return GetParam().victim(more_config);
  }
};

TEST_P(Faults, AKilledPeerIsNoticedAtOnceAndEverythingInFlightEnds) {
  Survivor survivor(GetParam());
  Victim victim(victim_options());
  const Peer peer = survivor.agent_.connect(victim.address());
  const Transfer move = survivor.write_to(peer, victim, {.timeout = 10s});
  ASSERT_EQ(Survivor::run(move), Status::kOk) << last_error();
  Status status = move.post();
  ASSERT_GE(static_cast<int>(status), 0) << status_name(status);
  const auto killed_at = Clock::now();
  victim.kill_hard();
  // The one in flight has one outcome; the first one after the peer is known to be gone is refused.
  status = move.wait(10s);
  EXPECT_NE(status, Status::kInProgress);
  ASSERT_TRUE(eventually([&] { return is_error(Survivor::run(move, 10s)); }));
  const double noticed_ms = milliseconds_since(killed_at);
  EXPECT_LT(noticed_ms, kAtOnceMs);
  EXPECT_TRUE(fenced_or_told(move.wait_fenced(Fence::kLocal, 10s), GetParam())) << last_error();
  std::printf("    %s: noticed after %.1f ms, fenced locally after %.1f ms\n", GetParam().name, noticed_ms,
              milliseconds_since(killed_at));
  EXPECT_TRUE(eventually([&] { return peer.health() == Health::kLost; }));
  EXPECT_LT(milliseconds_since(killed_at), 2 * kAtOnceMs);
}

// Each worker has connections of its own, and finds nobody at the address of a peer that has died.
TEST_P(Faults, APeerThatWasThereAndDiedIsLostToWorkersThatHadNoConnection) {
  Survivor survivor(GetParam(), {}, {}, 2);
  Victim reached(victim_options());
  VictimOptions other_options = victim_options();
  other_options.name = "other";
  Victim never_reached(other_options);
  const Peer peer = survivor.agent_.connect(reached.address());
  const Peer other_peer = survivor.agent_.connect(never_reached.address());
  const Transfer move = survivor.write_to(peer, reached, {.timeout = 10s});
  ASSERT_EQ(Survivor::run(move), Status::kOk) << last_error();
  never_reached.kill_hard();
  reached.kill_hard();
  ASSERT_TRUE(eventually([&] { return peer.health() == Health::kLost; }));
  EXPECT_EQ(Survivor::run(move), Status::kPeerLost) << last_error();
  for (int worker = 0; worker < 2; ++worker) {
    std::thread([&] {  // each thread has the next worker
      const auto status_of = [&](const Peer& to, const Victim& victim) {
        try {
          return Survivor::run(survivor.write_to(to, victim, {.timeout = 10s}));
        } catch (const Error& error) {
          EXPECT_NE(std::string(error.what()).find(to.name()), std::string::npos) << error.what();
          return error.code();
        }
      };
      EXPECT_EQ(status_of(peer, reached), Status::kPeerLost) << last_error();
      EXPECT_EQ(status_of(other_peer, never_reached), Status::kUnreachable) << last_error();
    })
        .join();
  }
}

TEST_P(Faults, AStoppedPeerIsSuspectThenLostAndOthersGoOn) {
  Survivor survivor(GetParam(), kQuickHeartbeat);
  Victim stopped(victim_options());
  VictimOptions other_options = victim_options();
  other_options.name = "other";
  Victim other(other_options);
  const Peer peer = survivor.agent_.connect(stopped.address());
  const Peer other_peer = survivor.agent_.connect(other.address());
  const Transfer move = survivor.write_to(peer, stopped, {.notice = "data", .timeout = kMoveLimit});
  const Transfer other_move = survivor.write_to(other_peer, other, {.timeout = kMoveLimit});
  ASSERT_EQ(Survivor::run(move, kMoveLimit), Status::kOk) << last_error();
  ASSERT_EQ(Survivor::run(other_move, kMoveLimit), Status::kOk) << last_error();
  stopped.signal(SIGSTOP);
  const auto stopped_at = Clock::now();
  ASSERT_TRUE(
      eventually([&] { return peer.health() == Health::kSuspect || peer.health() == Health::kLost; }));
  const double suspect_ms = milliseconds_since(stopped_at);
  ASSERT_EQ(Survivor::run(other_move, kMoveLimit), Status::kOk) << "another peer is not held up";
  ASSERT_TRUE(eventually([&] { return peer.health() == Health::kLost; }));
  const double lost_ms = milliseconds_since(stopped_at);
  std::printf("    %s: suspect after %.1f ms, lost after %.1f ms\n", GetParam().name, suspect_ms, lost_ms);
  EXPECT_LT(suspect_ms, kSuspectMs);
  EXPECT_LT(lost_ms, kLostMs);
  EXPECT_EQ(other_peer.health(), Health::kAlive);
  stopped.signal(SIGCONT);
  // The same incarnation: the same handles work again, over a new connection.
  ASSERT_TRUE(eventually([&] { return Survivor::run(move, kMoveLimit) == Status::kOk; })) << last_error();
  EXPECT_EQ(peer.health(), Health::kAlive);
}

TEST_P(Faults, APeerRestartedUnderItsNameIsMetAnew) {
  Survivor survivor(GetParam());
  auto victim = std::make_unique<Victim>(victim_options());
  const Peer before = survivor.agent_.connect(victim->address());
  const Transfer old = survivor.write_to(before, *victim, {.timeout = kMoveLimit});
  ASSERT_EQ(Survivor::run(old, kMoveLimit), Status::kOk) << last_error();
  victim = nullptr;  // kill -9
  victim = std::make_unique<Victim>(victim_options());
  const Peer after = survivor.agent_.connect(victim->address());
  EXPECT_NE(before.incarnation(), after.incarnation());
  EXPECT_EQ(old.post(), Status::kPeerRestarted);
  EXPECT_EQ(old.wait_fenced(Fence::kBoth, 5s), Status::kOk);
  EXPECT_EQ(Survivor::run(survivor.write_to(after, *victim), kMoveLimit), Status::kOk) << last_error();
  EXPECT_TRUE(survivor.echoes(after, "hello again"));
  EXPECT_EQ(victim->finish(), 0);
}

TEST_P(Faults, NothingIsLeftBehindByAKilledProcess) {
  // The first agent of a process loads plugins, and its first peer opens what it keeps for others.
  { Survivor warm_up(GetParam()); }
  const Belongings before_agent = belongings();
  {
    Survivor survivor(GetParam());
    const auto meet_and_kill = [&] {
      const Belongings before = belongings();
      Victim victim(victim_options());
      const Peer peer = survivor.agent_.connect(victim.address());
      ASSERT_EQ(Survivor::run(survivor.write_to(peer, victim)), Status::kOk) << last_error();
      EXPECT_NE(belongings(), before) << "a connection opens something, or this test sees nothing";
      victim.kill_hard();
      EXPECT_TRUE(eventually([&] { return peer.health() == Health::kLost; }, 5s));
    };
    // An agent keeps things that it makes once, when it first needs them. A leak would come with every peer.
    std::string left;
    for (int peers = 0; peers < 4 && left != "nothing"; ++peers) {
      const Belongings before_peer = belongings();
      meet_and_kill();
      const auto nothing_left = [&] { return (left = added(before_peer, belongings())) == "nothing"; };
      // The first one always leaves what the agent keeps.
      (void)eventually(nothing_left, peers == 0 ? 500ms : 3s);
    }
    EXPECT_EQ(left, "nothing") << "of each killed peer";
  }
  EXPECT_EQ(belongings(), before_agent) << "left of the closed agent: " << added(before_agent, belongings());
}

TEST_P(Faults, ASurvivorEndsCleanlyWhileTransfersAreUnderWay) {
  // The other way round: the side that posts goes away in the middle, the victim lives on and ends with exit
  // code 0.
  Victim victim(victim_options());
  {
    Survivor survivor(GetParam());
    const Peer peer = survivor.agent_.connect(victim.address());
    const Transfer move = survivor.write_to(peer, victim);
    ASSERT_GE(static_cast<int>(move.post()), 0);
  }
  Survivor next(GetParam());
  const Peer peer = next.agent_.connect(victim.address());
  EXPECT_EQ(Survivor::run(next.write_to(peer, victim)), Status::kOk) << last_error();
  EXPECT_EQ(victim.finish(), 0);
}

INSTANTIATE_TEST_SUITE_P(All, Faults, ::testing::ValuesIn(ways()),
                         [](const auto& test) { return std::string(test.param.name); });

// Runs `body` in a child process, since it changes what the whole process has; true when it returned true.
bool in_child(const std::function<bool()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    bool right = false;
    try {
      right = body();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());
    }
    std::fflush(nullptr);
    _exit(right ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST(Limits, OutOfDescriptorsIsAClearErrorAndTheFirstAgentGoesOn) {
  EXPECT_TRUE(in_child([] {
    Agent first("first", {.listen = "127.0.0.1:0"});
    Memory memory(1 << 20);
    const Region region = first.register_memory(dram(memory), {.access = Access::kAll});
    const Peer self = first.add_peer(first.metadata());
    const Transfer move = first.transfer(first.block_list(Blocks::at(memory.data(), 4096)),
                                         self.block_list(Blocks::at(memory.data() + 4096, 4096)));
    const rlimit none = {3, 3};
    setrlimit(RLIMIT_NOFILE, &none);
    try {
      Agent second("second", {.listen = "127.0.0.1:0"});
      return false;
    } catch (const Error& error) {
      std::printf("    %s\n", error.what());
      if (std::string(error.what()).find("EMFILE") == std::string::npos) return false;
    }
    return Survivor::run(move) == Status::kOk;
  }));
}

// ---- two hosts

bool shell(const std::string& command) { return std::system((command + " >/dev/null 2>&1").c_str()) == 0; }

// Two network namespaces joined by a veth pair, as two hosts: this process's own new one, and the victim's.
bool cut_and_heal() {
  if (unshare(CLONE_NEWNET) != 0) return false;
  const std::string quick = std::string(kQuickHeartbeat) + "[connection]\ntimeout = \"1s\"\n";
  VictimOptions options;
  options.listen = "10.77.0.2:7777";
  options.config = quick;
  options.own_network = true;
  Victim victim(options);
  const std::string pid = std::to_string(victim.pid());
  const std::string inside = "nsenter -t " + pid + " -n ";
  if (!shell("ip link set lo up && ip link add tl0 type veth peer name tl1 netns " + pid) ||
      !shell("ip addr add 10.77.0.1/24 dev tl0 && ip link set tl0 up") ||
      !shell(inside + "ip addr add 10.77.0.2/24 dev tl1") ||
      !shell(inside + "ip link set tl1 up && " + inside + "ip link set lo up")) {
    return false;
  }
  victim.network_ready();
  victim.wait_ready();
  const Way way = {"hosts", "tcp", "", false};
  Survivor survivor(way, quick, "10.77.0.1:7777");
  const Peer peer = survivor.agent_.connect(victim.address());
  const Transfer move = survivor.write_to(peer, victim, {.timeout = 3s});
  if (Survivor::run(move) != Status::kOk || !survivor.echoes(peer, "across")) return false;
  if (!shell("ip link set tl0 down")) return false;
  const auto cut_at = Clock::now();
  const Status cut = Survivor::run(move, 10s);
  const double ended_ms = milliseconds_since(cut_at);
  std::printf("    network cut: %s after %.1f ms\n", status_name(cut), ended_ms);
  if (!is_error(cut) || ended_ms > kLostMs) return false;
  if (!eventually([&] { return peer.health() == Health::kLost; }) || milliseconds_since(cut_at) > kLostMs)
    return false;
  if (!shell("ip link set tl0 up")) return false;
  const auto healed_at = Clock::now();
  if (!eventually([&] { return Survivor::run(move, 5s) == Status::kOk; })) return false;
  std::printf("    network healed: the same transfer done after %.1f ms\n", milliseconds_since(healed_at));
  return move.wait_fenced(Fence::kBoth, 5s) == Status::kOk && survivor.echoes(peer, "healed") &&
         victim.finish() == 0;
}

TEST(TwoHosts, ANetworkCutInTheMiddleEndsTransfersAndHeals) {
  const bool namespaces =
      in_child([] { return unshare(CLONE_NEWNET) == 0 && shell("ip link add tla type veth peer name tlb"); });
  if (!namespaces)
    GTEST_SKIP() << "needs the right to make network namespaces and veth pairs (CAP_NET_ADMIN)";
  EXPECT_TRUE(in_child(cut_and_heal));
}

// A machine that starts: its programs are there before its network is.
TEST(TwoHosts, ANetworkThatComesLateIsGivenOut) {
  if (!in_child([] { return unshare(CLONE_NEWNET) == 0; }))
    GTEST_SKIP() << "needs the right to make network namespaces";
  EXPECT_TRUE(in_child([] {
    if (unshare(CLONE_NEWNET) != 0) return false;
    const Agent early("early", {.listen = "*:0", .backends = "tcp"});
    if (!early.address().empty() || !shell("ip link set lo up")) return false;
    Memory memory(1 << 20);
    const Region region = early.register_memory(dram(memory), {.access = Access::kAll});
    const Agent other("other", {.listen = "*:0", .backends = "tcp"});
    Memory own(1 << 20);
    const Region own_region = other.register_memory(dram(own), {.access = Access::kAll});
    const Peer peer = other.connect(early.address());
    const Transfer move = other.transfer(other.block_list(Blocks::at(own.data(), 1 << 20)),
                                         peer.block_list(Blocks::at(memory.data(), 1 << 20)));
    return Survivor::run(move) == Status::kOk;
  }));
}

}  // namespace
}  // namespace towline::faults

int main(int argc, char** argv) {
  if (argc > 1 && std::string(argv[1]) == "--victim") return towline::faults::run_victim(argc, argv);
  if (argc > 1 && std::string(argv[1]) == "--poster") return towline::faults::run_poster(argc, argv);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
