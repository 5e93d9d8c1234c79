// Transfers that no backend does in one step, through staging memory: GPU memory here, and a path that takes host
// memory only. GPUs are made of host memory. (Files and objects: storage_staging_test, storage_gpu_test.)
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <thread>

#include "cuda_fixture.h"
#include "support/directed.h"

namespace towline::conformance {
namespace {

// Backends here and at the peer, of which no one moves GPU memory to that peer.
struct Path {
  const char* name;
  const char* here;
  const char* there;
  const char* config;
  bool shared;  // the peer's memory can be mapped
};

void PrintTo(const Path& path, std::ostream* out) { *out << path.name; }

constexpr Path kPaths[] = {
    {"memory", "cuda,memory", "memory", "", false},
    {"memory_framed", "cuda,memory", "memory", "[tuning.memory]\nframed = true\n", false},
    {"shm_mapped", "cuda,shm", "shm", "[tuning.shm]\npaths = \"mapped\"\n", true},
    {"shm_process_vm", "cuda,shm", "shm", "[tuning.shm]\npaths = \"process_vm\"\n", false},
    {"shm_ring", "cuda,shm", "shm", "[tuning.shm]\npaths = \"ring\"\n", false},
};

class LegsTest : public CudaTest, public ::testing::WithParamInterface<Path> {
 protected:
  static constexpr uint64_t kChunk = 64 << 10;
  static constexpr uint64_t kSet = 3 * kChunk;
  static constexpr uint64_t kBytes = 1 << 20;
  static constexpr uint32_t kCount = kBytes / kPage;

  void SetUp() override {
    CudaTest::SetUp();
    if (HasFatalFailure()) return;
    begin_anew();
  }
  void TearDown() override {
    end();
    CudaTest::TearDown();
  }
  void end() {
    peer_.reset();
    left_region_.reset();
    left_.reset();
    right_region_.reset();
    right_.reset();
  }
  void begin_anew(const char* more = "") {
    end();
    const std::string config = std::string(GetParam().config) + more;
    left_ = std::make_unique<Agent>(
        "left", AgentOptions{.listen = "127.0.0.1:0",
                             .backends = GetParam().here,
                             .config = "plugins = [\"" TOWLINE_CUDA_FAKE "\"]\n" + config +
                                       "[tuning.staging]\nchunk = \"64KiB\"\ndepth = 3\nbytes = \"400KiB\"\n",
                             .default_timeout = 60s});
    right_ = std::make_unique<Agent>(
        "right",
        AgentOptions{
            .listen = "127.0.0.1:0", .backends = GetParam().there, .config = config, .default_timeout = 60s});
    left_region_ = std::make_unique<Region>(left_->register_memory(vram(mine_), {.access = Access::kAll}));
    right_region_ = std::make_unique<Region>(
        right_->register_memory(dram(theirs_->data(), kBytes), {.access = Access::kAll}));
    peer_ = std::make_unique<Peer>(left_->add_peer(right_->metadata()));
  }
  [[nodiscard]] BlockList ours() const { return left_->block_list(pages(mine_)); }
  [[nodiscard]] BlockList at_peer() const {
    return peer_->block_list(Blocks::at(theirs_->data(), kPage).repeat(kCount, kPage));
  }
  [[nodiscard]] Transfer move(Op op, TransferOptions options = {}) const {
    return directed(*left_, op, ours(), at_peer(), options);
  }
  [[nodiscard]] bool same() const { return std::memcmp(mine_.data(), theirs_->data(), kBytes) == 0; }
  // A post that waits at the GPU, for gpu("hold", 0).
  void hold(const Transfer& transfer) {
    gpu("hold", 1);
    ASSERT_EQ(transfer.post(), Status::kInProgress);
    while (!command_("held", 0, 0, 0)) {
      ASSERT_EQ(transfer.poll(), Status::kInProgress) << "it ended before the GPU had it";
      std::this_thread::yield();
    }
  }

  const Buffer mine_{kBytes, true};
  const std::unique_ptr<Buffer> theirs_ = std::make_unique<Buffer>(kBytes, GetParam().shared);
};

INSTANTIATE_TEST_SUITE_P(All, LegsTest, ::testing::ValuesIn(kPaths),
                         [](const auto& path) { return path.param.name; });

TEST_P(LegsTest, GpuMemoryHereGoesToHostMemoryThereAndComesBack) {
  stamp(mine_.data(), kBytes, 1);
  const Transfer save = move(Op::write, {.notice = "saved"});
  ASSERT_EQ(run(save), Status::kOk) << last_error();
  EXPECT_EQ(save.result().bytes, kBytes);
  EXPECT_TRUE(same());
  Notice notice;
  while (right_->receive(notice) != Status::kOk) ASSERT_EQ(right_->wait(20s), Status::kOk);
  EXPECT_EQ(notice.text(), "saved");
  EXPECT_EQ(save.wait_fenced(Fence::kBoth, 20s), Status::kOk);
  stamp(theirs_->data(), kBytes, 2);
  const Transfer load = move(Op::read);
  for (int round = 0; round < 3; ++round) {
    std::memset(mine_.data(), 0, kBytes);
    ASSERT_EQ(run(load), Status::kOk) << last_error();
    ASSERT_TRUE(same());
  }
}

TEST_P(LegsTest, PickedPagesGoWhereTheyBelong) {
  std::vector<uint32_t> from(kCount);
  std::iota(from.begin(), from.end(), 0u);
  std::shuffle(from.begin(), from.end(), std::mt19937(3));
  from.resize(kCount - 37);
  const std::vector<uint32_t> to(from.rbegin(), from.rend());
  for (const Op op : {Op::write, Op::read}) {
    const Buffer& source = op == Op::write ? mine_ : *theirs_;
    const Buffer& target = op == Op::write ? *theirs_ : mine_;
    stamp(source.data(), kBytes, op == Op::write ? 4 : 5);
    std::memset(target.data(), 0, kBytes);
    ASSERT_EQ(run(directed(*left_, op, ours()[from], at_peer()[to])), Status::kOk) << last_error();
    std::vector<bool> moved(kCount);
    for (size_t i = 0; i < from.size(); ++i) {
      ASSERT_EQ(std::memcmp(mine_.data() + from[i] * kPage, theirs_->data() + to[i] * kPage, kPage), 0) << i;
      moved[op == Op::write ? to[i] : from[i]] = true;
    }
    const std::vector<std::byte> nothing(kPage);
    for (uint32_t page = 0; page < kCount; ++page)
      EXPECT_TRUE(moved[page] || std::memcmp(target.data() + page * kPage, nothing.data(), kPage) == 0)
          << page;
  }
}

TEST_P(LegsTest, TheRouteShowsTheLegsTheirPricesAndTheWaysNotTaken) {
  const Transfer save = move(Op::write);
  const std::string route = save.route();
  const std::string far = GetParam().there;
  EXPECT_NE(route.find("staged through 0.1875 MiB: cuda then " + far), std::string::npos) << route;
  EXPECT_NE(route.find("pinned memory beside GPU 0"), std::string::npos) << route;
  EXPECT_NE(route.find(far + ": it does not write vram here to dram there"), std::string::npos) << route;
  EXPECT_NE(route.find("cuda: the peer does not offer it"), std::string::npos) << route;
  EXPECT_NE(route.find("\"price\":{"), std::string::npos) << route;
  EXPECT_NE(move(Op::read).route().find(far + " then cuda"), std::string::npos);
  for (const char* forced : {"cuda", GetParam().there})
    EXPECT_EQ(run(move(Op::write, {.backend = forced})), Status::kOk) << forced;
}

// Blocks of a failed leg that the result does not name have arrived.
TEST_P(LegsTest, AFailureNamesTheBlocksThatDidNotArrive) {
  for (const Op op : {Op::write, Op::read}) {
    SCOPED_TRACE(static_cast<int>(op));
    const Buffer& source = op == Op::write ? mine_ : *theirs_;
    const Buffer& target = op == Op::write ? *theirs_ : mine_;
    stamp(source.data(), kBytes, 6);
    std::memset(target.data(), 0, kBytes);
    const Transfer transfer = move(op);
    gpu("refuse", 1, 700);
    ASSERT_EQ(transfer.post(), Status::kInProgress);
    EXPECT_TRUE(is_error(transfer.wait(20s)));
    EXPECT_NE(std::string(last_error()).find(" in the leg over cuda"), std::string::npos) << last_error();
    ASSERT_EQ(transfer.wait_fenced(Fence::kBoth, 20s), Status::kOk);
    const Result result = transfer.result();
    ASSERT_GE(result.failed_ranges, 1u);
    std::vector<bool> named(kCount);
    for (const auto& range : result.failures())
      std::fill_n(named.begin() + static_cast<ptrdiff_t>(range.first), range.count, true);
    uint64_t there = 0;
    for (uint32_t page = 0; page < kCount; ++page) {
      if (named[page]) continue;
      ++there;
      ASSERT_EQ(std::memcmp(source.data() + page * kPage, target.data() + page * kPage, kPage), 0) << page;
    }
    EXPECT_EQ(result.bytes, there * kPage);
    EXPECT_LT(there, kCount);
    std::memset(target.data(), 0, kBytes);
    ASSERT_EQ(run(transfer), Status::kOk) << "it can be posted again";
    EXPECT_TRUE(same());
  }
}

TEST_P(LegsTest, ADeadlineEndsItAndTheFenceSaysWhenNothingLands) {
  ASSERT_EQ(run(move(Op::write)), Status::kOk) << last_error();  // connected
  const Transfer transfer = move(Op::write, {.timeout = 1s});
  ASSERT_NO_FATAL_FAILURE(hold(transfer));
  EXPECT_EQ(transfer.wait(5s), Status::kTimedOut);
  EXPECT_EQ(transfer.wait_fenced(Fence::kBoth, 0ms), Status::kNotYet) << "a copy is still at the GPU";
  gpu("hold", 0);
  ASSERT_EQ(transfer.wait_fenced(Fence::kBoth, 60s), Status::kOk);
  const std::vector<std::byte> then(theirs_->data(), theirs_->data() + kBytes);
  stamp(mine_.data(), kBytes, 8);
  EXPECT_EQ(std::memcmp(then.data(), theirs_->data(), kBytes), 0);
  ASSERT_EQ(run(transfer), Status::kOk);
  EXPECT_TRUE(same());
}

TEST_P(LegsTest, ACancelHasOneOutcomeAndAFence) {
  const Transfer transfer = move(Op::read);
  hold(transfer);
  EXPECT_EQ(transfer.cancel(), Status::kOk);
  EXPECT_EQ(transfer.wait(5s), Status::kCancelled);
  EXPECT_EQ(transfer.post(), Status::kBusy);
  gpu("hold", 0);
  ASSERT_EQ(transfer.wait_fenced(Fence::kBoth, 60s), Status::kOk);
  EXPECT_EQ(transfer.poll(), Status::kCancelled);
  stamp(theirs_->data(), kBytes, 9);
  ASSERT_EQ(run(transfer), Status::kOk);
  EXPECT_TRUE(same());
}

TEST_P(LegsTest, ACancelWhileItWaitsForItsTurnNamesWhatIsCancelled) {
  const Transfer first = move(Op::write);
  const Transfer second = move(Op::write);  // so both sets are in use
  const Transfer third = move(Op::write);
  ASSERT_NO_FATAL_FAILURE(hold(first));
  ASSERT_EQ(second.post(), Status::kInProgress);
  ASSERT_EQ(third.post(), Status::kInProgress);
  EXPECT_EQ(third.cancel(), Status::kOk);
  EXPECT_EQ(third.wait(5s), Status::kCancelled);
  gpu("hold", 0);
  ASSERT_EQ(third.wait_fenced(Fence::kBoth, 60s), Status::kOk);
  const auto result = third.result();
  ASSERT_EQ(result.failures().size(), 1u);
  EXPECT_EQ(result.failures()[0].status, TOWLINE_CANCELLED);
  EXPECT_EQ(result.failures()[0].count, kCount);
  EXPECT_EQ(first.wait(60s), Status::kOk);
  EXPECT_EQ(second.wait(60s), Status::kOk);
}

TEST_P(LegsTest, ThePeersEndEndsItAtOnce) {
  const Transfer transfer = move(Op::write);
  hold(transfer);
  right_.reset();
  const auto began = std::chrono::steady_clock::now();
  gpu("hold", 0);
  EXPECT_TRUE(is_error(transfer.wait(15s)));
  EXPECT_LT(std::chrono::steady_clock::now() - began, 5s);
  EXPECT_EQ(transfer.wait_fenced(Fence::kLocal, 20s), Status::kOk);
}

TEST_P(LegsTest, ARegionThatALegUsesIsDeregisteredWhenTheLegHasEnded) {
  const Transfer transfer = move(Op::write);
  hold(transfer);
  EXPECT_EQ(left_region_->deregister(50ms), Status::kNotYet);
  gpu("hold", 0);
  EXPECT_EQ(left_region_->deregister(20s), Status::kOk);
  EXPECT_NE(transfer.wait(20s), Status::kNotYet);
  ASSERT_EQ(transfer.wait_fenced(Fence::kBoth, 20s), Status::kOk);
  EXPECT_EQ(transfer.post(), Status::kStale);
  EXPECT_NE(std::string(last_error()).find("this agent has deregistered the region with key"),
            std::string::npos)
      << last_error();
}

TEST_P(LegsTest, ARegionThatThePeerHasDeregisteredIsNamed) {
  const Transfer transfer = move(Op::write);
  ASSERT_EQ(run(transfer), Status::kOk);
  right_region_->deregister(20s);
  const auto until = std::chrono::steady_clock::now() + 20s;
  while (run(transfer) == Status::kOk && std::chrono::steady_clock::now() < until) std::this_thread::yield();
  ASSERT_EQ(transfer.wait_fenced(Fence::kBoth, 20s), Status::kOk);
  EXPECT_EQ(run(transfer), Status::kStale);
  EXPECT_NE(std::string(last_error()).find("peer 'right' has deregistered the region with key"),
            std::string::npos)
      << last_error();
}

TEST_P(LegsTest, MoreTransfersThanThereAreSetsTakeTurns) {
  constexpr size_t kThreads = 5;
  stamp(mine_.data(), kBytes, 10);
  std::vector<std::thread> threads;
  std::vector<Status> outcomes(kThreads, Status::kInternal);
  for (size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::vector<uint32_t> picks(kCount / kThreads);
      std::iota(picks.begin(), picks.end(), static_cast<uint32_t>(t * picks.size()));
      const Transfer save = left_->transfer(ours()[picks], at_peer()[picks]);
      for (int i = 0; i < 4; ++i) {
        outcomes[t] = run(save);
        if (outcomes[t] != Status::kOk) return;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Status outcome : outcomes) EXPECT_EQ(outcome, Status::kOk);
  EXPECT_EQ(std::memcmp(mine_.data(), theirs_->data(), kCount / kThreads * kThreads * kPage), 0);
  const std::string info = left_->info();
  EXPECT_NE(info.find("\"limit_bytes\":409600"), std::string::npos) << info;
  EXPECT_NE(info.find("\"bytes\":393216"), std::string::npos) << info;
}

TEST_P(LegsTest, StagingMemoryThatCanNotBePinnedStillServes) {
  gpu("refuse pins", 1);
  stamp(mine_.data(), kBytes, 11);
  ASSERT_EQ(run(move(Op::write)), Status::kOk) << last_error();
  EXPECT_TRUE(same());
}

TEST_P(LegsTest, ABackendThatDoesNeitherLegIsRefusedByTheNameOfThePeerThatWasAskedFor) {
  const std::string config = std::string("plugins = [\"" TOWLINE_CUDA_FAKE "\"]\n") + GetParam().config;
  const Agent wide(
      "wide",
      {.listen = "127.0.0.1:0", .backends = std::string(GetParam().here) + ",posix", .config = config});
  const Region region = wide.register_memory(vram(mine_), {.access = Access::kAll});
  const Peer peer = wide.add_peer(right_->metadata());
  const std::string text = text_of([&] {
    (void)wide.transfer(wide.block_list(pages(mine_)),
                        peer.block_list(Blocks::at(theirs_->data(), kPage).repeat(kCount, kPage)),
                        {.backend = "posix"});
  });
  EXPECT_NE(text.find("no backend moves the blocks of peer 'right' in one step"), std::string::npos) << text;
  EXPECT_NE(text.find("posix: it does not"), std::string::npos) << text;
}

TEST_P(LegsTest, WithoutAWayToTheStagingMemoryBothReasonsAreGiven) {
  const Agent other("other", {.listen = "127.0.0.1:0", .backends = "tcp"});
  const Region there = other.register_memory(dram(theirs_->data(), kBytes), {.access = Access::kAll});
  const Peer unreached = left_->add_peer(other.metadata());
  const std::string text = text_of(
      [&] { (void)left_->transfer(ours(), unreached.block_list(Blocks::at(theirs_->data(), kBytes))); });
  EXPECT_NE(text.find("\n  cuda: the peer does not offer it"), std::string::npos) << text;
  EXPECT_NE(
      text.find("in two steps, through staging memory: no backend moves staging memory to dram of the peer"),
      std::string::npos)
      << text;
}

}  // namespace
}  // namespace towline::conformance
