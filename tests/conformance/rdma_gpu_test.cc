// GPU memory over rdma, by NICs that read and write it themselves: what the conformance suite (rdma_gpu) does not show, that
// is who touches the memory, what happens to descriptors, and what the routes say where a driver or a NIC can't. GPUs are made
// of host memory, and their dma-bufs of memfds.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <filesystem>

#include "cuda_fixture.h"

namespace towline::conformance {
namespace {

constexpr const char* kAble = "loopback:gpu, loopback:gpu";
constexpr const char* kUnable = "loopback:gpu?host_only";
constexpr const char* kWays[] = {"",
                                 "background_bytes = \"1\"\n"};  // registered at once, and in the background

class RdmaGpuTest : public CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (HasFatalFailure()) return;
    begin(kAble, kAble);
    stamp(left_memory_.data(), left_memory_.size(), 1);
  }
  // more: settings of rdma.
  void begin(const char* left_rails, const char* right_rails, const std::string& more = {}) {
    peer_.reset();
    left_region_.reset();
    right_region_.reset();
    left_ = std::make_unique<Agent>("left", over(left_rails, more));
    right_ = std::make_unique<Agent>("right", over(right_rails, more));
  }
  static AgentOptions over(const std::string& rails, const std::string& more = {}) {
    return {.listen = "127.0.0.1:0",
            .backends = "rdma,cuda",
            .config = "plugins = [\"" TOWLINE_CUDA_FAKE
                      "\"]\n[gpu]\nunordered = true\n[tuning.rdma]\nrails = \"" +
                      rails + "\"\n" + more,
            .default_timeout = 20s};
  }
  // Whoever touches it meanwhile gets SIGSEGV: "the GPU", and any code of ours.
  void touch(int access) {
    for (const Buffer* memory : {&left_memory_, &right_memory_})
      ASSERT_EQ(mprotect(memory->data(), memory->size(), access), 0);
  }
  static std::size_t open_files() {
    using Files = std::filesystem::directory_iterator;
    return static_cast<std::size_t>(std::distance(Files{"/proc/self/fd"}, Files{}));
  }
  // A transfer from this GPU memory to host memory of the peer, and where it arrives.
  struct ToHost {
    ToHost(RdmaGpuTest& test)
        : memory(kPage * kPages, false),
          region(test.right_->register_memory(dram(memory.data(), memory.size()), {.access = Access::kAll})),
          mine(test.left_->register_memory(vram(test.left_memory_), {.access = Access::kAll})),
          peer(test.left_->add_peer(test.right_->metadata())),
          move(test.left_->transfer(test.left_->block_list(pages(test.left_memory_)),
                                    peer.block_list(blocks_of(memory.data(), memory.size(), kPage)),
                                    {.backend = "rdma"})) {}
    Buffer memory;
    Region region;
    Region mine;
    Peer peer;
    Transfer move;
  };
  void expect_legs(const std::string& reason) {
    const ToHost whole{*this};
    const std::string route = whole.move.route();
    EXPECT_NE(route.find("cuda then rdma"), std::string::npos) << route;
    EXPECT_NE(route.find("memory of this agent is not registered with its rails: "), std::string::npos)
        << route;
    EXPECT_NE(route.find(reason), std::string::npos) << route;
    ASSERT_EQ(run(whole.move), Status::kOk) << last_error();
    EXPECT_EQ(std::memcmp(whole.memory.data(), left_memory_.data(), left_memory_.size()), 0);
  }
};

TEST_F(RdmaGpuTest, TheNicsReadAndWriteTheMemoryAndNothingElseTouchesIt) {
  const Transfer there = make_move({.notice = "there"});
  const Transfer back =
      left_->transfer(peer_->block_list(pages(right_memory_)), left_->block_list(pages(left_memory_)));
  EXPECT_NE(there.route().find("\"backend\":\"rdma\""), std::string::npos) << there.route();
  touch(PROT_NONE);
  ASSERT_EQ(run(there), Status::kOk) << last_error();
  Notice notice;
  while (right_->receive(notice) != Status::kOk) ASSERT_EQ(right_->wait(20s), Status::kOk);
  EXPECT_EQ(notice.text(), "there");
  touch(PROT_READ | PROT_WRITE);
  EXPECT_TRUE(arrived());
  std::memset(left_memory_.data(), 0, left_memory_.size());
  stamp(right_memory_.data(), right_memory_.size(), 2);
  touch(PROT_NONE);
  ASSERT_EQ(run(back), Status::kOk) << last_error();
  touch(PROT_READ | PROT_WRITE);
  EXPECT_TRUE(arrived());
  EXPECT_TRUE(command_("exported", 2, 0, 0)) << "once for each region, whatever the number of rails";
}

TEST_F(RdmaGpuTest, GpuMemoryGoesToHostMemoryAndBackInOneStep) {
  const ToHost whole{*this};
  EXPECT_NE(whole.move.route().find("\"backend\":\"rdma\""), std::string::npos) << whole.move.route();
  ASSERT_EQ(run(whole.move), Status::kOk) << last_error();
  EXPECT_EQ(std::memcmp(whole.memory.data(), left_memory_.data(), left_memory_.size()), 0);
}

TEST_F(RdmaGpuTest, ADescriptorIsClosedOnceTheRailsHaveIt) {
  const std::size_t before = open_files();
  {
    const Region region = left_->register_memory(vram(left_memory_), {.access = Access::kAll});
    EXPECT_EQ(open_files(), before);
    EXPECT_TRUE(command_("exported", 1, 0, 0));
  }
  EXPECT_EQ(open_files(), before);
}

// A dma-buf begins at a page.
TEST_F(RdmaGpuTest, ARegionMayBeginAndEndWithinAPage) {
  constexpr uint64_t kSkip = 3 * kPage + 520;
  constexpr uint64_t kBytes = 7 * kPage + 24;
  const auto part_of = [](const Buffer& memory) {
    return MemoryView{.address = memory.data() + kSkip, .bytes = kBytes, .kind = Kind::kVram};
  };
  const auto block_of = [](const Buffer& memory) {
    return Blocks::at(memory.data() + kSkip, kBytes, Kind::kVram);
  };
  const Region here = left_->register_memory(part_of(left_memory_), {.access = Access::kAll});
  const Region there = right_->register_memory(part_of(right_memory_), {.access = Access::kAll});
  const Peer peer = left_->add_peer(right_->metadata());
  const Transfer move = left_->transfer(left_->block_list(block_of(left_memory_)),
                                        peer.block_list(block_of(right_memory_)), {.backend = "rdma"});
  ASSERT_EQ(run(move), Status::kOk) << last_error();
  EXPECT_EQ(std::memcmp(right_memory_.data() + kSkip, left_memory_.data() + kSkip, kBytes), 0);
  EXPECT_EQ(right_memory_.data()[kSkip - 1], std::byte{0});
  EXPECT_EQ(right_memory_.data()[kSkip + kBytes], std::byte{0});
}

TEST_F(RdmaGpuTest, WhereTheDriverExportsNothingItGoesInLegsAndTheRouteSaysWhy) {
  gpu("refuse dma", 1);
  expect_legs("cuMemGetHandleForAddressRange: CUDA_ERROR_NOT_SUPPORTED (801)");
}

TEST_F(RdmaGpuTest, WhereTheNicTakesNoDmaBufItGoesInLegsAndTheRouteSaysWhy) {
  for (const char* way : kWays) {
    begin(kUnable, kAble, way);
    expect_legs("the rail takes no dma-buf");
  }
}

TEST_F(RdmaGpuTest, AnOwnerWhoseNicTakesNoDmaBufSaysSo) {
  for (const char* way : kWays) {
    begin(kAble, kUnable, way);
    const std::string text = text_of([&] { (void)make_move({.backend = "rdma"}); });
    EXPECT_NE(text.find("the owner: its rails have not registered the memory"), std::string::npos) << text;
    EXPECT_NE(text.find("the rail takes no dma-buf"), std::string::npos) << text;
  }
}

TEST_F(RdmaGpuTest, WithoutCudaTheReasonIsTold) {
  AgentOptions options = over(kAble);
  options.backends = "rdma";
  const Agent alone("alone", options);
  const std::string text =
      text_of([&] { (void)alone.register_memory(vram(left_memory_), {.access = Access::kAll}); });
  EXPECT_NE(text.find("no open backend of this agent knows GPU memory (cuda does)"), std::string::npos)
      << text;
}

}  // namespace
}  // namespace towline::conformance
