// Transfers between GPU memory here and a peer that is reached by host memory only, when the peer is killed, stopped
// or cancelled in the middle: one outcome, the blocks that are missing named, what is not named there for certain,
// the staging memory free for the next. GPUs are made of host memory.
#include <gtest/gtest.h>

#include <csignal>
#include <cstring>
#include <string>
#include <vector>

#include "support/directed.h"
#include "towline/towline.hpp"
#include "victim.h"

namespace towline::faults {
namespace {

using namespace std::chrono_literals;

constexpr uint64_t kLegBlock = 1 << 18;
constexpr uint64_t kLegBlocks = kVictimBytes / kLegBlock;

// Every word tells where it belongs.
uint64_t word_at(uint64_t i, uint64_t seed) { return (i + seed) * 0x9e3779b97f4a7c15ULL + 1; }

// This process: it drives its own progress, so that the middle of a transfer is where it stops driving.
class Legs : public ::testing::TestWithParam<const char*> {  // shm's path
 protected:
  void fill(uint64_t seed) {
    auto* words = reinterpret_cast<uint64_t*>(memory_.data());
    for (uint64_t i = 0; i < kVictimBytes / 8; ++i) words[i] = word_at(i, seed);
  }
  [[nodiscard]] bool is_there(uint64_t block, uint64_t seed) const {
    const auto* words = reinterpret_cast<const uint64_t*>(memory_.data());
    for (uint64_t i = block * kLegBlock / 8; i < (block + 1) * kLegBlock / 8; ++i)
      if (words[i] != word_at(i, seed)) return false;
    return true;
  }
  [[nodiscard]] static std::string path() {
    return std::string("[tuning.shm]\npaths = \"") + GetParam() + "\"\n";
  }
  [[nodiscard]] Transfer move(Op op, const Peer& peer, const Victim& victim,
                              TransferOptions options = {}) const {
    return directed(
        agent_, op,
        agent_.block_list(Blocks::at(memory_.data(), kLegBlock, Kind::kVram).repeat(kLegBlocks, kLegBlock)),
        peer.block_list(Blocks::at(victim.memory(), kLegBlock).repeat(kLegBlocks, kLegBlock)), options);
  }
  static Status run(const Transfer& transfer) {
    const Status posted = transfer.post();
    return posted == Status::kInProgress ? transfer.wait(60s) : posted;
  }
  static void drive_to_the_middle(const Transfer& transfer) {
    ASSERT_EQ(transfer.post(), Status::kInProgress);
    const auto until = std::chrono::steady_clock::now() + 60s;
    while (transfer.result().bytes == 0 && std::chrono::steady_clock::now() < until) (void)transfer.poll();
    ASSERT_GT(transfer.result().bytes, 0u);
    ASSERT_LT(transfer.result().bytes, kVictimBytes);
  }
  // After a READ that failed every block that the result does not name is here.
  void expect_rest_here(const Result& result, uint64_t seed) const {
    std::vector<bool> failed(kLegBlocks);
    for (const auto& range : result.failures())
      for (uint64_t block = range.first; block < range.first + range.count; ++block) failed.at(block) = true;
    uint64_t good = 0;
    for (uint64_t block = 0; block < kLegBlocks; ++block) {
      if (failed[block]) continue;
      ++good;
      ASSERT_TRUE(is_there(block, seed)) << "block " << block << " is not named as failed";
    }
    EXPECT_GT(good, 0u);
    EXPECT_LT(good, kLegBlocks);
  }

  Agent agent_{"stager",
               {.progress = Progress::kCaller,
                .listen = "none",
                .backends = "cuda,shm",
                .config = "plugins = [\"" TOWLINE_CUDA_FAKE "\"]\n" + path() +
                          "[tuning.staging]\nchunk = \"512KiB\"\ndepth = 2\nbytes = \"1MiB\"\n"}};
  Memory memory_{kVictimBytes};
  Region region_ = agent_.register_memory(
      {.address = memory_.data(), .bytes = kVictimBytes, .kind = Kind::kVram}, {.access = Access::kAll});
};

INSTANTIATE_TEST_SUITE_P(All, Legs, ::testing::Values("mapped", "ring"),
                         [](const auto& path) { return std::string(path.param); });

TEST_P(Legs, APeerKilledInTheMiddleLeavesWhatIsNotNamedAsFailed) {
  for (const Op op : {Op::write, Op::read}) {
    SCOPED_TRACE(static_cast<int>(op));
    Victim victim({.backends = "shm", .config = path()});
    const Peer peer = agent_.connect(victim.address());
    fill(1);
    ASSERT_EQ(run(move(Op::write, peer, victim)), Status::kOk);
    if (op == Op::read) std::memset(memory_.data(), 0, kVictimBytes);
    const Transfer half = move(op, peer, victim);
    ASSERT_NO_FATAL_FAILURE(drive_to_the_middle(half));
    const auto killed = std::chrono::steady_clock::now();
    victim.kill_hard();
    const Status outcome = half.wait(60s);
    EXPECT_LT(std::chrono::steady_clock::now() - killed, 5s);
    ASSERT_EQ(half.wait_fenced(Fence::kLocal, 60s), Status::kOk);
    // Memory that is mapped outlives its owner: what was under way may yet be done.
    const bool may_be_done = GetParam() == std::string("mapped") && outcome == Status::kOk;
    EXPECT_TRUE(outcome == Status::kPeerLost || may_be_done) << status_name(outcome);
    if (outcome != Status::kOk && op == Op::read) expect_rest_here(half.result(), 1);
  }
  // The memory in between is free again.
  Victim victim({.backends = "shm", .config = path()});
  const Peer peer = agent_.connect(victim.address());
  fill(2);
  ASSERT_EQ(run(move(Op::write, peer, victim)), Status::kOk);
  std::memset(memory_.data(), 0, kVictimBytes);
  ASSERT_EQ(run(move(Op::read, peer, victim)), Status::kOk);
  for (uint64_t block = 0; block < kLegBlocks; ++block) ASSERT_TRUE(is_there(block, 2)) << block;
}

TEST_P(Legs, AStoppedPeerDoesNotKeepATransferBeyondItsDeadline) {
  Victim victim({.backends = "shm", .config = path()});
  const Peer peer = agent_.connect(victim.address());
  fill(3);
  ASSERT_EQ(run(move(Op::write, peer, victim)), Status::kOk);
  const Transfer half = move(Op::read, peer, victim, {.timeout = 500ms});
  victim.signal(SIGSTOP);
  const auto posted = std::chrono::steady_clock::now();
  const Status outcome = run(half);
  EXPECT_LT(std::chrono::steady_clock::now() - posted, 3s);
  // The owner of mapped memory takes no part.
  EXPECT_EQ(outcome, GetParam() == std::string("mapped") ? Status::kOk : Status::kTimedOut);
  victim.signal(SIGCONT);
  EXPECT_EQ(half.wait_fenced(Fence::kLocal, 60s), Status::kOk);
  std::memset(memory_.data(), 0, kVictimBytes);
  ASSERT_EQ(run(move(Op::read, peer, victim)), Status::kOk);
  for (uint64_t block = 0; block < kLegBlocks; ++block) ASSERT_TRUE(is_there(block, 3)) << block;
}

TEST_P(Legs, ACancelInTheMiddleLeavesWhatIsNotNamedAsFailed) {
  Victim victim({.backends = "shm", .config = path()});
  const Peer peer = agent_.connect(victim.address());
  fill(4);
  ASSERT_EQ(run(move(Op::write, peer, victim)), Status::kOk);
  std::memset(memory_.data(), 0, kVictimBytes);
  const Transfer half = move(Op::read, peer, victim);
  ASSERT_NO_FATAL_FAILURE(drive_to_the_middle(half));
  half.cancel();
  EXPECT_EQ(half.wait(60s), Status::kCancelled);
  ASSERT_EQ(half.wait_fenced(Fence::kLocal, 60s), Status::kOk);
  expect_rest_here(half.result(), 4);
}

TEST_P(Legs, APostThatIsRefusedSinceItsPeerIsGoneDoesNotHoldUpTheEndOfItsAgent) {
  Victim victim({.backends = "shm", .config = path()});
  const Peer peer = agent_.connect(victim.address());
  const Plan plan = agent_.plan(
      agent_.block_list(Blocks::at(memory_.data(), kLegBlock, Kind::kVram).repeat(kLegBlocks, kLegBlock)),
      peer.block_list(Blocks::at(victim.memory(), kLegBlock).repeat(kLegBlocks, kLegBlock)));
  ASSERT_EQ(plan.post({.stream = unordered}).wait(60s), Status::kOk);
  victim.kill_hard();
  bool refused = false;
  for (const auto until = std::chrono::steady_clock::now() + 20s;
       !refused && std::chrono::steady_clock::now() < until;) {
    const Post post = plan.post({.stream = unordered});
    refused = !post.accepted();
    if (!refused) (void)post.wait(20s);
  }
  ASSERT_TRUE(refused);
  EXPECT_NE(plan.route().find("staged"), std::string::npos) << plan.route();
  const auto began = std::chrono::steady_clock::now();
  agent_.close();
  EXPECT_LT(std::chrono::steady_clock::now() - began, 3s);
}

TEST(Ways, NotTakenNameTheirBackendOnce) {
  Victim victim({.backends = "memory,shm", .config = ""});
  const Agent agent("here", {.listen = "none", .backends = "memory,shm"});
  const Memory memory(kLegBlock);
  const Region region = agent.register_memory(dram(memory));
  const Peer peer = agent.connect(victim.address());
  const Transfer move = agent.transfer(agent.block_list(Blocks::at(memory.data(), kLegBlock)),
                                       peer.block_list(Blocks::at(victim.memory(), kLegBlock)));
  EXPECT_NE(move.route().find("\"memory: the peer is not an agent of this process\""), std::string::npos)
      << move.route();
}

}  // namespace
}  // namespace towline::faults
