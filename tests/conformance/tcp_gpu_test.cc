// GPU memory over tcp, as between hosts: what the conformance suite (tcp_gpu) does not show, that is lists with host
// memory on one side, what the routes say, and what goes wrong. GPUs are made of host memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <future>
#include <optional>
#include <random>
#include <thread>

#include "cuda_fixture.h"
#include "support/directed.h"

namespace towline::conformance {
namespace {

class TcpGpuTest : public CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (HasFatalFailure()) return;
    begin_anew();
    stamp(left_memory_.data(), left_memory_.size(), 1);
  }
  // Without regions that peers remember at addresses which are used again.
  void begin_anew() {
    peer_.reset();
    left_region_.reset();
    right_region_.reset();
    left_ = std::make_unique<Agent>("left", over("tcp,cuda"));
    right_ = std::make_unique<Agent>("right", over("tcp,cuda"));
  }
  static AgentOptions over(const char* backends, const char* more = "") {
    return {.listen = "127.0.0.1:0",
            .backends = backends,
            .config = std::string("plugins = [\"" TOWLINE_CUDA_FAKE "\"]\n") + more,
            .default_timeout = 20s};
  }
  static Blocks pages_of(const Buffer& memory, Kind kind) {
    return Blocks::at(memory.data(), kPage, kind).repeat(memory.size() / kPage, kPage);
  }
  static MemoryView view_of(const Buffer& memory, Kind kind) {
    return {.address = memory.data(), .bytes = memory.size(), .kind = kind};
  }
  // Random pages both ways, between these kinds of memory; the routes' texts.
  std::string there_and_back(Kind here, Kind there) {
    const Buffer mine(kPage * 2048, false);
    const Buffer theirs(kPage * 2048, false);
    const Region my_region = left_->register_memory(view_of(mine, here), {.access = Access::kAll});
    const Region their_region = right_->register_memory(view_of(theirs, there), {.access = Access::kAll});
    const Peer peer = left_->add_peer(right_->metadata());
    const BlockList local = left_->block_list(pages_of(mine, here));
    const BlockList remote = peer.block_list(pages_of(theirs, there));
    std::vector<uint32_t> from(2048);
    for (uint32_t i = 0; i < from.size(); ++i) from[i] = i;
    std::vector<uint32_t> to = from;
    std::shuffle(from.begin(), from.end(), std::mt19937(1));
    std::shuffle(to.begin(), to.end(), std::mt19937(2));
    std::string routes;
    for (const Op op : {Op::write, Op::read}) {
      const Buffer& source = op == Op::write ? mine : theirs;
      const Buffer& target = op == Op::write ? theirs : mine;
      stamp(source.data(), source.size(), op == Op::write ? 5 : 6);
      std::memset(target.data(), 0, target.size());
      const Transfer move = directed(*left_, op, local[from], remote[to], {.notice = "moved"});
      EXPECT_EQ(run(move), Status::kOk) << last_error();
      for (std::size_t i = 0; i < from.size(); ++i)
        EXPECT_EQ(std::memcmp(mine.data() + from[i] * kPage, theirs.data() + to[i] * kPage, kPage), 0) << i;
      Notice notice;
      while (right_->receive(notice) != Status::kOk) EXPECT_EQ(right_->wait(20s), Status::kOk);
      EXPECT_EQ(notice.text(), "moved");
      routes += move.route() + "\n";
    }
    return routes;
  }
  // A transfer that waits at a GPU for gpu("hold", 0).
  Transfer hold_one(Op op = Op::write) {
    (void)make_move();
    Transfer move =
        directed(*left_, op, left_->block_list(pages(left_memory_)), peer_->block_list(pages(right_memory_)));
    EXPECT_EQ(run(move), Status::kOk) << last_error();
    gpu("hold", 1);
    EXPECT_EQ(move.post(), Status::kInProgress);
    while (!command_("held", 0, 0, 0)) std::this_thread::yield();
    return move;
  }
};

TEST_F(TcpGpuTest, BesideAModelPagesAreGatheredAndSentByTheCopyEngine) {
  peer_.reset();
  left_ = std::make_unique<Agent>("left", over("tcp,cuda", "[tuning.cuda]\nbeside = \"model\"\n"));
  right_ = std::make_unique<Agent>("right", over("tcp,cuda", "[tuning.cuda]\nbeside = \"model\"\n"));
  gpu("reset");
  (void)there_and_back(Kind::kVram, Kind::kVram);
  EXPECT_TRUE(command_("gathered", 2 * 2048 * kPage, 0, 0)) << "those of both ways";
}

TEST_F(TcpGpuTest, GpuMemoryMovesToHostMemoryAndBackAndTheRouteSaysHow) {
  const std::string to_host = there_and_back(Kind::kVram, Kind::kDram);
  EXPECT_NE(to_host.find("\"backend\":\"tcp\""), std::string::npos) << to_host;
  EXPECT_NE(to_host.find("host memory"), std::string::npos) << to_host;
  begin_anew();
  const std::string from_host = there_and_back(Kind::kDram, Kind::kVram);
  EXPECT_NE(from_host.find("frames over tcp, by host memory of its owner"), std::string::npos) << from_host;
  begin_anew();
  const std::string both = there_and_back(Kind::kVram, Kind::kVram);
  EXPECT_NE(both.find("by host memory of its owner"), std::string::npos) << both;
}

TEST_F(TcpGpuTest, AnAgentWithoutGpusReachesAPeersGpu) {
  left_ = std::make_unique<Agent>("left", AgentOptions{.listen = "127.0.0.1:0", .backends = "tcp"});
  (void)there_and_back(Kind::kDram, Kind::kVram);
}

TEST_F(TcpGpuTest, GpuMemoryIsRefusedWithTheReasonWhereNothingCopiesIt) {
  const Agent alone("alone", {.listen = "127.0.0.1:0", .backends = "tcp"});
  const std::string text =
      text_of([&] { (void)alone.register_memory(vram(left_memory_), {.access = Access::kAll}); });
  EXPECT_NE(text.find("no open backend of this agent copies GPU memory (cuda does)"), std::string::npos)
      << text;
}

// No other test measures this size here.
TEST_F(TcpGpuTest, CudaIsPreferredWhereItReachesTheMemory) {
  left_ = std::make_unique<Agent>("left", over(""));
  right_ = std::make_unique<Agent>("right", over(""));
  const Buffer mine(64 << 20, true);
  const Buffer theirs(64 << 20, true);
  const Region here = left_->register_memory(vram(mine), {.access = Access::kAll});
  const Region there = right_->register_memory(vram(theirs), {.access = Access::kAll});
  const Peer peer = left_->add_peer(right_->metadata());
  const Transfer near = left_->transfer(left_->block_list(pages(mine)), peer.block_list(pages(theirs)));
  EXPECT_NE(near.route().find("\"backend\":\"cuda\""), std::string::npos) << near.route();
}

TEST_F(TcpGpuTest, WhatCudaDoesNotReachGoesOverTcp) {
  constexpr const char* kNever = "[tuning.cuda]\ndirect = \"false\"\nthrough_host = \"never\"\n";
  left_ = std::make_unique<Agent>("left", over("", kNever));
  right_ = std::make_unique<Agent>("right", over("", kNever));
  gpu("separate", 1);
  const Transfer far = make_move();
  EXPECT_NE(far.route().find("\"backend\":\"tcp\""), std::string::npos) << far.route();
  ASSERT_EQ(run(far), Status::kOk) << last_error();
  EXPECT_TRUE(arrived());
}

TEST_F(TcpGpuTest, ListsOfHostMemoryAndTwoGpusGoInOneTransfer) {
  const Buffer second(kPage * kPages, false);
  const Buffer host(kPage * kPages, false);
  gpu("place", reinterpret_cast<uint64_t>(second.data()), second.size(), 1);
  const Region here = left_->register_memory(vram(left_memory_), {.access = Access::kAll});
  const Region there = right_->register_memory(vram(right_memory_), {.access = Access::kAll});
  const Region other = right_->register_memory(vram(second, 1), {.access = Access::kAll});
  const Region plain = right_->register_memory(view_of(host, Kind::kDram), {.access = Access::kAll});
  const Peer peer = left_->add_peer(right_->metadata());
  const BlockList theirs =
      peer.block_list(std::vector{pages(right_memory_), pages(second, 1), pages_of(host, Kind::kDram)});
  std::vector<uint32_t> picks;
  for (uint32_t i = 0; i < kPages; ++i) picks.push_back(i / 3 % 3 * kPages + i);
  ASSERT_EQ(run(left_->transfer(left_->block_list(pages(left_memory_)), theirs[picks])), Status::kOk)
      << last_error();
  const Buffer* const buffers[] = {&right_memory_, &second, &host};
  for (uint32_t i = 0; i < kPages; ++i)
    ASSERT_EQ(std::memcmp(left_memory_.data() + i * kPage, buffers[i / 3 % 3]->data() + i * kPage, kPage), 0)
        << i;
}

TEST_F(TcpGpuTest, AGpuThatRefusesEndsOnlyTheTransferAndNamesItsCode) {
  const Transfer move = make_move();
  ASSERT_EQ(run(move), Status::kOk) << last_error();
  gpu("refuse", 1, 701);
  EXPECT_EQ(run(move), Status::kIo);
  ASSERT_EQ(move.wait_fenced(Fence::kBoth, 20s), Status::kOk);
  const Result result = move.result();
  ASSERT_EQ(result.failed_ranges, 1u);
  EXPECT_EQ(result.failed[0].vendor_code, 701);
  EXPECT_EQ(run(move), Status::kOk) << last_error();
}

TEST_F(TcpGpuTest, MemoryTakenAwayUnderARegionIsFoundBeforeItIsTouched) {
  const Transfer move = make_move();
  ASSERT_EQ(run(move), Status::kOk) << last_error();
  gpu("forget", reinterpret_cast<uint64_t>(right_memory_.data()), right_memory_.size());
  EXPECT_EQ(run(move), Status::kStale);
  EXPECT_EQ(move.wait_fenced(Fence::kBoth, 20s), Status::kOk);
  gpu("reset");
  gpu("forget", reinterpret_cast<uint64_t>(left_memory_.data()), left_memory_.size());
  EXPECT_EQ(run(move), Status::kStale);
}

TEST_F(TcpGpuTest, WithoutRoomForStagingMemoryHereItGoesInLegsAndThereItIsAnErrorOfThePost) {
  {
    gpu("refuse pools", 1);
    const Transfer legs = make_move({.backend = "tcp"});
    const std::string route = legs.route();
    EXPECT_NE(route.find("no room to pin staging memory"), std::string::npos) << route;
    EXPECT_NE(route.find("cuda then tcp"), std::string::npos) << route;
    gpu("refuse pools", 0);
    ASSERT_EQ(run(legs), Status::kOk) << last_error();
    EXPECT_TRUE(arrived());
  }
  begin_anew();
  const Transfer move = make_move({.backend = "tcp"});
  gpu("refuse pools", 1);  // this side has its own already
  EXPECT_EQ(run(move), Status::kOutOfMemory);
  EXPECT_NE(right_->info().find("gets no staging memory for GPU 0"), std::string::npos) << right_->info();
  ASSERT_EQ(move.wait_fenced(Fence::kBoth, 20s), Status::kOk);
}

// It would wait for kernels, which may be waiting for what such a connection moves.
TEST_F(TcpGpuTest, WhereUnpinningWaitsTheNextConnectionGetsWhatTheLastOnePinned) {
  gpu("reset");
  gpu("unpinning waits", 1);
  for (int round = 0; round < 3; ++round) {
    begin_anew();
    std::memset(right_memory_.data(), 0, right_memory_.size());
    ASSERT_EQ(run(make_move({.backend = "tcp"})), Status::kOk) << last_error();
    EXPECT_TRUE(arrived());
  }
  EXPECT_TRUE(command_("unpinned", 0, 0, 0));
}

TEST_F(TcpGpuTest, AllConnectionsTogetherPinNoMoreThanTheSetting) {
  right_ = std::make_unique<Agent>("right", over("tcp,cuda", "[tuning.cuda]\nlanding_bytes = \"20MiB\"\n"));
  const Agent other("other", over("tcp,cuda"));
  const Buffer memory(kPage * kPages, false);
  const Region region = other.register_memory(vram(memory), {.access = Access::kAll});
  std::optional<Transfer> first = make_move();
  ASSERT_EQ(run(*first), Status::kOk) << last_error();
  const Peer peer = other.add_peer(right_->metadata());
  const Transfer second =
      other.transfer(other.block_list(pages(memory)), peer.block_list(pages(right_memory_)));
  const auto run_second = [&] {
    const Status status = run(second);
    EXPECT_EQ(second.wait_fenced(Fence::kBoth, 20s), Status::kOk);
    return status;
  };
  EXPECT_EQ(run_second(), Status::kAgain);
  EXPECT_NE(right_->info().find("tuning.cuda.landing_bytes allows"), std::string::npos) << right_->info();
  EXPECT_EQ(run(*first), Status::kOk) << "the one that has its share goes on";
  first.reset();
  peer_.reset();
  left_region_.reset();
  left_.reset();  // which gives the share back
  const auto limit = std::chrono::steady_clock::now() + 20s;
  Status status = Status::kAgain;
  while (status == Status::kAgain && std::chrono::steady_clock::now() < limit) status = run_second();
  EXPECT_EQ(status, Status::kOk) << status_name(status);
}

TEST_F(TcpGpuTest, ADeadlineIsKeptWhileAGpuStandsStillAndTheFenceWaitsForIt) {
  for (const Op op : {Op::write, Op::read}) {
    const Transfer held = hold_one(op);
    held.cancel();
    EXPECT_EQ(held.wait(5s), Status::kCancelled);
    EXPECT_EQ(held.wait_fenced(Fence::kBoth, 50ms), Status::kNotYet);
    gpu("hold", 0);
    EXPECT_EQ(held.wait_fenced(Fence::kBoth, 20s), Status::kOk);
    stamp(left_memory_.data(), left_memory_.size(), 7);
    EXPECT_EQ(run(held), Status::kOk) << last_error();
    EXPECT_TRUE(op == Op::read || arrived());
    begin_anew();
  }
}

TEST_F(TcpGpuTest, TheWorkerServesOthersWhileAGpuStandsStill) {
  const Transfer held = hold_one();
  Agent third("third", {.listen = "127.0.0.1:0", .backends = "tcp", .default_timeout = 20s});
  const Peer onlooker = left_->add_peer(third.metadata());
  ASSERT_EQ(onlooker.send(std::as_bytes(std::span("on"))), Status::kOk);
  Notice notice;
  while (third.receive(notice) != Status::kOk) ASSERT_EQ(third.wait(5s), Status::kOk);
  gpu("hold", 0);
  EXPECT_EQ(held.wait(20s), Status::kOk);
}

TEST_F(TcpGpuTest, DeregisteringWaitsForAGpuOnEitherSide) {
  const Transfer held = hold_one();  // this side's gathers
  EXPECT_EQ(left_region_->deregister(50ms), Status::kNotYet);
  gpu("hold", 0);
  EXPECT_EQ(left_region_->deregister(20s), Status::kOk) << last_error();
}

TEST_F(TcpGpuTest, AnOwnersRegionWaitsForWhatItsGpuCopies) {
  const Transfer held = hold_one(Op::read);  // the owner gathers
  EXPECT_EQ(right_region_->deregister(50ms), Status::kNotYet);
  gpu("hold", 0);
  EXPECT_EQ(right_region_->deregister(20s), Status::kOk) << last_error();
  EXPECT_NE(held.wait(20s), Status::kNotYet);
}

TEST_F(TcpGpuTest, ALostPeersTransferHasItsOutcomeAtOnceAndItsFenceAfterTheGpu) {
  const Transfer held = hold_one();
  std::future<void> ending = std::async(std::launch::async, [&] {
    right_.reset();
    right_region_.reset();
  });
  EXPECT_EQ(held.wait(5s), Status::kPeerLost);
  EXPECT_EQ(held.wait_fenced(Fence::kLocal, 100ms), Status::kNotYet);
  gpu("hold", 0);
  EXPECT_EQ(held.wait_fenced(Fence::kLocal, 20s), Status::kOk);
  ending.wait();
}

TEST_F(TcpGpuTest, AnOwnersRegionWaitsForACopyThatALostPeerAskedFor) {
  {
    const Transfer held = hold_one(Op::read);
    left_.reset();
    left_region_.reset();
  }
  EXPECT_EQ(right_region_->deregister(200ms), Status::kNotYet);
  gpu("hold", 0);
  EXPECT_EQ(right_region_->deregister(20s), Status::kOk) << last_error();
}

TEST_F(TcpGpuTest, AnAgentThatEndsWhileItsGpuStandsStillReportsNoFence) {
  const Transfer held = hold_one();
  std::future<void> ending = std::async(std::launch::async, [&] { left_.reset(); });
  EXPECT_EQ(ending.wait_for(20s), std::future_status::ready);
  EXPECT_EQ(held.poll(), Status::kClosed);
  EXPECT_EQ(held.wait_fenced(Fence::kLocal, 1ms), Status::kUnsupported);
  gpu("hold", 0);
  ending.wait();
}

TEST_F(TcpGpuTest, GuardedRegionsAndRightsAreCheckedForEachFrame) {
  const Region here = left_->register_memory(vram(left_memory_), {.access = Access::kAll});
  const Region there =
      right_->register_memory(vram(right_memory_), {.access = Access::kRead, .guarded = true});
  const Peer peer = left_->add_peer(right_->metadata());
  const std::string text = text_of([&] {
    (void)left_->transfer(left_->block_list(pages(left_memory_)), peer.block_list(pages(right_memory_)));
  });
  EXPECT_NE(text, "it went well");
  EXPECT_EQ(
      run(left_->transfer(peer.block_list(pages(right_memory_)), left_->block_list(pages(left_memory_)))),
      Status::kOk)
      << last_error();
}

}  // namespace
}  // namespace towline::conformance
