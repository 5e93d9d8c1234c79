// GPU memory over tcpx: that fragments are copied by the GPU from where they arrived, and from staging memory where
// they can't be. GPUs are made of host memory.
#include <gtest/gtest.h>

#include "cuda_fixture.h"
#include "support/directed.h"

namespace towline::conformance {
namespace {

class TcpxGpuTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kPage = 4096;
  static constexpr uint64_t kPages = 1024;

  static AgentOptions over(const std::string& tcpx) {
    return {.listen = "127.0.0.1:0",
            .backends = "tcpx,cuda",
            .config =
                "plugins = [\"" TOWLINE_CUDA_FAKE "\", \"" TOWLINE_TCPX_PLUGIN "\"]\n[tuning.tcpx]\n" + tcpx,
            .default_timeout = 20s};
  }
  // Pages in reverse order, both ways; what the right agent says of itself then.
  std::string move(const std::string& tcpx, Kind kind = Kind::kVram, bool exported = false) {
    const Agent left("left", over(tcpx));
    const Agent right("right", over(tcpx));
    const Buffer mine(kPage * kPages, exported);
    const Buffer theirs(kPage * kPages, exported);
    const auto view = [kind](const Buffer& memory) {
      return MemoryView{.address = memory.data(), .bytes = memory.size(), .kind = kind};
    };
    const auto pages = [kind](const Buffer& memory) {
      return Blocks::at(memory.data(), kPage, kind).repeat(kPages, kPage);
    };
    const Region my_region = left.register_memory(view(mine), {.access = Access::kAll});
    const Region their_region = right.register_memory(view(theirs), {.access = Access::kAll});
    const Peer peer = left.add_peer(right.metadata());
    std::vector<uint32_t> forward(kPages);
    for (uint32_t i = 0; i < kPages; ++i) forward[i] = i;
    const std::vector<uint32_t> backward(forward.rbegin(), forward.rend());
    // The first are begun before the payload flow is up: four more after it was used.
    for (int round = 0, used = 0; used < 4 && round < 1000; ++round) {
      for (const Op op : {Op::write, Op::read}) {
        const Buffer& source = op == Op::write ? mine : theirs;
        const Buffer& target = op == Op::write ? theirs : mine;
        stamp(source.data(), source.size(), static_cast<uint64_t>(round) * 2 + (op == Op::read ? 1 : 0));
        std::memset(target.data(), 0, target.size());
        const Transfer transfer = directed(left, op, left.block_list(pages(mine))[forward],
                                           peer.block_list(pages(theirs))[backward]);
        const Status posted = transfer.post();
        EXPECT_EQ(posted == Status::kInProgress ? transfer.wait(20s) : posted, Status::kOk) << last_error();
        for (std::size_t i = 0; i < kPages; ++i)
          EXPECT_EQ(std::memcmp(mine.data() + i * kPage, theirs.data() + (kPages - 1 - i) * kPage, kPage), 0);
        if (used != 0) {
          EXPECT_NE(transfer.route().find("payload by"), std::string::npos) << transfer.route();
        }
      }
      if (number_after(right.info(), "fragments") != 0) ++used;
    }
    return right.info();
  }
  static uint64_t number_after(const std::string& text, const std::string& key) {
    const std::size_t at = text.find("\"" + key + "\":");
    EXPECT_NE(at, std::string::npos) << key << " is not in " << text;
    return at == std::string::npos
               ? 0
               : std::stoull(text.substr(text.find_first_of("0123456789", at + key.size())));
  }
};

TEST_F(TcpxGpuTest, AGpuCopiesFragmentsFromWhereTheyArrived) {
  const std::string info = move("source = \"emulated\"\n");
  EXPECT_GT(number_after(info, "kept_bytes"), kPage * kPages);
  EXPECT_EQ(number_after(info, "held"), 0u);
}

TEST_F(TcpxGpuTest, ATinyPoolIsCopiedOutAndEveryByteArrives) {
  const std::string info = move("source = \"emulated\"\npool_bytes = \"32KiB\"\n");
  EXPECT_GT(number_after(info, "copied_bytes"), 0u);
  EXPECT_EQ(number_after(info, "held"), 0u);
}

TEST_F(TcpxGpuTest, APoolThatNoGpuReachesIsCopiedOut) {
  const std::string info = move("source = \"mapped\"\n");
  EXPECT_EQ(number_after(info, "kept_bytes"), 0u);
  EXPECT_GT(number_after(info, "fragments"), 0u);
}

// ---- sent as it lies

TEST_F(TcpxGpuTest, BoundMemoryIsSentAsItLiesBothWays) {
  const std::string info =
      move("source = \"emulated\"\nsend = \"emulated\"\nsockets = 2\n", Kind::kVram, true);
  EXPECT_EQ(number_after(info, "bound_regions"), 1u);
  EXPECT_GE(number_after(info, "bound_bytes"), kPage * kPages) << "answers to READs";
  EXPECT_EQ(number_after(info, "sent_bytes"), 0u);
  EXPECT_NE(info.find("\"why_not_bound\":\"\""), std::string::npos) << info;
}

TEST_F(TcpxGpuTest, MemoryThatTheDriverDoesNotExportIsGatheredAndTheReasonIsSaid) {
  const std::string info = move("source = \"emulated\"\nsend = \"emulated\"\n");
  EXPECT_EQ(number_after(info, "bound_regions"), 0u);
  EXPECT_EQ(number_after(info, "bound_bytes"), 0u);
  EXPECT_GT(number_after(info, "sent_bytes"), 0u);
  EXPECT_NE(info.find("no dma-buf"), std::string::npos) << info;
}

TEST_F(TcpxGpuTest, WithoutANicMemoryIsGatheredAndTheReasonIsSaid) {
  const std::string info = move("source = \"emulated\"\n", Kind::kVram, true);
  EXPECT_EQ(number_after(info, "bound_regions"), 0u);
  EXPECT_NE(info.find("tuning.tcpx.interface gives no NIC that sends"), std::string::npos) << info;
}

// ---- pools in memory of a GPU

TEST_F(TcpxGpuTest, PayloadThatArrivesInMemoryOfAGpuIsUnpackedThere) {
  const std::string info = move("source = \"emulated\"\npool = \"gpu\"\n");
  EXPECT_NE(info.find("\"pool\":\"memory of GPU 0 at 0000:f0:00.0\""), std::string::npos) << info;
  EXPECT_GT(number_after(info, "kept_bytes"), kPage * kPages);
  EXPECT_EQ(number_after(info, "held"), 0u);
}

TEST_F(TcpxGpuTest, ATinyPoolInMemoryOfAGpuIsReadByItAndEveryByteArrives) {
  const std::string info = move("source = \"emulated\"\npool = \"gpu\"\npool_bytes = \"32KiB\"\n");
  EXPECT_GT(number_after(info, "fetched_bytes"), 0u);
  EXPECT_EQ(number_after(info, "held"), 0u);
}

TEST_F(TcpxGpuTest, PayloadForHostMemoryIsReadOutOfTheGpus) {
  const std::string info = move("source = \"emulated\"\npool = \"gpu\"\n", Kind::kDram);
  EXPECT_GT(number_after(info, "fetched_bytes"), kPage * kPages);
  EXPECT_EQ(number_after(info, "kept_bytes"), 0u);
  EXPECT_EQ(number_after(info, "held"), 0u);
}

TEST_F(TcpxGpuTest, WhereNoGpuGivesMemoryTheReasonIsSaid) {
  void* const library = dlopen(TOWLINE_CUDA_FAKE, RTLD_NOW);
  ASSERT_NE(library, nullptr) << dlerror();
  const auto command = reinterpret_cast<bool (*)(const char*, uint64_t, uint64_t, uint64_t)>(
      dlsym(library, "towline_fake_gpu"));
  ASSERT_TRUE(command("refuse dma", 1, 0, 0));
  const Agent agent("left", over("source = \"emulated,copy\"\npool = \"auto\"\n"));
  EXPECT_NE(agent.info().find("\"source\":\"emulated\""), std::string::npos) << agent.info();
  const Agent refused("right", over("source = \"emulated\"\npool = \"gpu\"\n"));
  EXPECT_NE(refused.info().find("no memory that is a dma-buf"), std::string::npos) << refused.info();
  (void)command("reset", 0, 0, 0);
  dlclose(library);
}

// Host memory at one end, so that the unpacking is all that GPUs are asked for.
class UnpackFails : public TcpxGpuTest {
 protected:
  using Command = bool (*)(const char* command, uint64_t a, uint64_t b, uint64_t c);

  void SetUp() override {
    library_ = dlopen(TOWLINE_CUDA_FAKE, RTLD_NOW);
    ASSERT_NE(library_, nullptr) << dlerror();
    command_ = reinterpret_cast<Command>(dlsym(library_, "towline_fake_gpu"));
    ASSERT_NE(command_, nullptr);
    left_ = std::make_unique<Agent>("left", over("source = \"emulated\"\n"));
    right_ = std::make_unique<Agent>("right", over("source = \"emulated\"\n"));
    my_region_ = std::make_unique<Region>(left_->register_memory(dram(mine_), {.access = Access::kAll}));
    their_region_ = std::make_unique<Region>(right_->register_memory(
        MemoryView{.address = theirs_.data(), .bytes = theirs_.size(), .kind = Kind::kVram},
        {.access = Access::kAll}));
    peer_ = std::make_unique<Peer>(left_->add_peer(right_->metadata()));
    stamp(mine_.data(), mine_.size(), 7);
    wait_for_flow();
  }
  void TearDown() override {
    (void)command_("reset", 0, 0, 0);
    peer_.reset();
    my_region_.reset();
    their_region_.reset();
    left_.reset();
    right_.reset();
    while (command_("busy", 0, 0, 0)) std::this_thread::yield();
    dlclose(library_);
  }
  Transfer make_write() {
    return left_->transfer(
        left_->block_list(Blocks::at(mine_.data(), kPage).repeat(kPages, kPage)),
        peer_->block_list(Blocks::at(theirs_.data(), kPage, Kind::kVram).repeat(kPages, kPage)));
  }
  // Under way, with a launch that does not go on.
  Transfer hold_one() {
    Transfer transfer = make_write();
    EXPECT_TRUE(command_("hold", 1, 0, 0));
    EXPECT_EQ(transfer.post(), Status::kInProgress);
    while (!command_("held", 0, 0, 0)) std::this_thread::yield();
    return transfer;
  }
  Status write() {
    std::memset(theirs_.data(), 0, theirs_.size());
    const Transfer transfer = make_write();
    const Status posted = transfer.post();
    return posted == Status::kInProgress ? transfer.wait(20s) : posted;
  }
  // Until fragments have come: the first transfers may begin before the payload flow is up.
  void wait_for_flow() {
    const auto until = std::chrono::steady_clock::now() + 20s;
    while (number_after(right_->info(), "kept_bytes") == 0 && std::chrono::steady_clock::now() < until)
      ASSERT_EQ(write(), Status::kOk) << last_error();
  }
  void expect_nothing_held() {
    const auto until = std::chrono::steady_clock::now() + 20s;
    while (number_after(right_->info(), "held") != 0 && std::chrono::steady_clock::now() < until)
      std::this_thread::yield();
    EXPECT_EQ(number_after(right_->info(), "held"), 0u);
  }

  void* library_ = nullptr;
  Command command_ = nullptr;
  const Memory mine_{kPage * kPages};
  const Buffer theirs_{kPage * kPages, false};
  std::unique_ptr<Agent> left_;
  std::unique_ptr<Agent> right_;
  std::unique_ptr<Region> my_region_;
  std::unique_ptr<Region> their_region_;
  std::unique_ptr<Peer> peer_;
};

TEST_F(UnpackFails, ARefusedLaunchEndsItsTransferAndTheNextOneIsWhole) {
  ASSERT_TRUE(command_("refuse", 1, 719, 0));
  EXPECT_EQ(write(), Status::kIo);
  expect_nothing_held();
  ASSERT_EQ(write(), Status::kOk) << last_error();
  EXPECT_EQ(std::memcmp(mine_.data(), theirs_.data(), mine_.size()), 0);
  expect_nothing_held();
}

// As where a kernel faults: nothing of that GPU works any more, but nothing hangs, and no token is lost.
TEST_F(UnpackFails, AGpuThatBreaksEndsTransfersAndGivesEveryTokenBack) {
  ASSERT_TRUE(command_("break", 700, 0, 0));
  EXPECT_EQ(write(), Status::kIo);
  expect_nothing_held();
  EXPECT_NE(write(), Status::kOk);
  expect_nothing_held();
}

// While the GPU has one batch to do and others wait behind it.
TEST_F(UnpackFails, ACancelledTransferLeavesItsBatchesToEndAndNoTokenHeld) {
  const Transfer held = hold_one();
  held.cancel();
  EXPECT_EQ(held.wait(5s), Status::kCancelled);
  EXPECT_EQ(held.wait_fenced(Fence::kBoth, 50ms), Status::kNotYet);
  ASSERT_TRUE(command_("hold", 0, 0, 0));
  EXPECT_EQ(held.wait_fenced(Fence::kBoth, 20s), Status::kOk);
  expect_nothing_held();
  ASSERT_EQ(write(), Status::kOk) << last_error();
  EXPECT_EQ(std::memcmp(mine_.data(), theirs_.data(), mine_.size()), 0);
}

TEST_F(UnpackFails, DeregisteringWaitsForTheBatchesThatWriteToTheRegion) {
  const Transfer held = hold_one();
  EXPECT_EQ(their_region_->deregister(50ms), Status::kNotYet);
  ASSERT_TRUE(command_("hold", 0, 0, 0));
  EXPECT_EQ(their_region_->deregister(20s), Status::kOk) << last_error();
  (void)held.wait(20s);  // whole, or the region was gone for its last frames
  expect_nothing_held();
}

// One copy, by the kernel: the GPU takes it from there.
TEST_F(TcpxGpuTest, ASourceWithoutAPoolReceivesIntoStagingMemory) {
  const std::string info = move("source = \"copy\"\n");
  EXPECT_GT(number_after(info, "linear_bytes"), kPage * kPages);
  EXPECT_EQ(number_after(info, "copied_bytes"), 0u);
  EXPECT_EQ(number_after(info, "kept_bytes"), 0u);
}

TEST_F(TcpxGpuTest, TheLadderIsShown) {
  const Agent agent("left", over("source = \"mapped\"\n"));
  EXPECT_NE(agent.info().find("\"source\":\"mapped\""), std::string::npos) << agent.info();
}

}  // namespace
}  // namespace towline::conformance
