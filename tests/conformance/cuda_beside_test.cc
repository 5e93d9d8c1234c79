// Copies from the GPU to host memory that leave the GPU to the model: gathered on the GPU and sent by the copy
// engine. GPUs are made of host memory.
#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "cuda_fixture.h"
#include "support/directed.h"

namespace towline::conformance {
namespace {

constexpr uint64_t kMany = 24 << 20;

class CudaBesideTest : public CudaTest {
 protected:
  // GPU memory of the left agent to host memory of the right one, or for a READ the other way about. Pages are
  // picked in disorder on the GPU, and in runs of `run` pages on the host.
  void make(const char* settings, Op op, uint64_t page, uint64_t run, uint64_t shift = 0) {
    move_.reset();
    regions_.clear();
    restart(settings);
    page_ = page;
    shift_ = shift;
    const Agent& gpus = op == Op::write ? *left_ : *right_;
    const Agent& hosts = op == Op::write ? *right_ : *left_;
    regions_.push_back(gpus.register_memory(vram(gpu_memory_), {.access = Access::kAll}));
    regions_.push_back(
        hosts.register_memory(dram(host_memory_.data() + shift, kMany), {.access = Access::kAll}));
    peer_ = std::make_unique<Peer>(left_->add_peer(right_->metadata()));
    const auto pages = static_cast<uint32_t>(kMany / page);
    on_gpu_.resize(pages);
    std::iota(on_gpu_.begin(), on_gpu_.end(), 0u);
    std::shuffle(on_gpu_.begin(), on_gpu_.end(), std::mt19937(1));
    std::vector<uint32_t> runs(pages / run);
    std::iota(runs.begin(), runs.end(), 0u);
    std::shuffle(runs.begin(), runs.end(), std::mt19937(2));
    on_host_.clear();
    for (const uint32_t one : runs)
      for (uint32_t i = 0; i < run; ++i) on_host_.push_back(one * static_cast<uint32_t>(run) + i);
    on_gpu_.resize(on_host_.size());
    const Blocks there = Blocks::at(gpu_memory_.data(), page, Kind::kVram).repeat(pages, page);
    const Blocks here = Blocks::at(host_memory_.data() + shift, page).repeat(pages, page);
    if (op == Op::write)
      move_.emplace(
          directed(*left_, op, left_->block_list(there)[on_gpu_], peer_->block_list(here)[on_host_]));
    else
      move_.emplace(
          directed(*left_, op, left_->block_list(here)[on_host_], peer_->block_list(there)[on_gpu_]));
  }
  void TearDown() override {
    if (command_ != nullptr) gpu("reset");
    move_.reset();
    regions_.clear();
    CudaTest::TearDown();
  }
  void move_anew() {
    stamp(gpu_memory_.data(), kMany, ++round_);
    std::memset(host_memory_.data(), 0, host_memory_.size());
    ASSERT_EQ(run(*move_), Status::kOk) << last_error();
    ASSERT_TRUE(arrived());
  }
  void cancel_while_the_gpu_stands_still() {
    gpu("hold", 1);
    ASSERT_EQ(move_->post(), Status::kInProgress) << last_error();
    while (!command_("held", 0, 0, 0)) std::this_thread::yield();
    move_->cancel();
    EXPECT_EQ(move_->wait(20s), Status::kCancelled);
    EXPECT_EQ(move_->wait_fenced(Fence::kBoth, 50ms), Status::kNotYet);
    gpu("hold", 0);
    EXPECT_EQ(move_->wait_fenced(Fence::kBoth, 20s), Status::kOk);
    move_anew();
  }
  [[nodiscard]] bool arrived() const {
    for (size_t i = 0; i < on_host_.size(); ++i)
      if (std::memcmp(host_memory_.data() + shift_ + on_host_[i] * page_,
                      gpu_memory_.data() + on_gpu_[i] * page_, page_) != 0)
        return false;
    return true;
  }
  [[nodiscard]] uint64_t moved_bytes() const { return on_host_.size() * page_; }
  [[nodiscard]] bool gathered(uint64_t bytes) { return command_("gathered", bytes, 0, 0); }

  Buffer gpu_memory_{kMany, true};
  Buffer host_memory_{kMany + kPage, true};
  std::vector<Region> regions_;
  std::optional<Transfer> move_;
  std::vector<uint32_t> on_gpu_;
  std::vector<uint32_t> on_host_;
  uint64_t page_ = 0;
  uint64_t shift_ = 0;
  uint64_t round_ = 0;
};

TEST_F(CudaBesideTest, GatheredPagesArriveWhereTheyBelong) {
  for (const Op op : {Op::write, Op::read}) {
    for (const uint64_t page : {512, 1000, 4096, 32768, 40000, 65536}) {
      gpu("reset");
      make("beside = \"model\"\npin = \"first\"\n", op, page, (1 << 20) / page);
      move_anew();
      EXPECT_TRUE(gathered(moved_bytes())) << page;
      move_anew();
    }
  }
}

TEST_F(CudaBesideTest, WhatWasPinnedInSeveralPiecesIsSentPieceByPiece) {
  make("beside = \"model\"\npin = \"first\"\n", Op::read, 4096, kMany / 4096, 100);
  move_anew();
  EXPECT_TRUE(gathered(kMany));
}

TEST_F(CudaBesideTest, AScatteredHostSideIsWrittenByThreads) {
  for (const Op op : {Op::write, Op::read}) {
    for (const uint64_t page : {256, 1000, 4096, 32768, 40000}) {
      gpu("reset");
      make("beside = \"model\"\npin = \"first\"\nhost_threads = \"2\"\n", op, page, 1);
      move_anew();
      EXPECT_TRUE(gathered(moved_bytes())) << page;
      move_anew();
      move_anew();  // both ways are tried
      move_anew();
    }
  }
  EXPECT_NE(move_->route().find("scattered_by_threads_gb_per_s"), std::string::npos) << move_->route();
}

TEST_F(CudaBesideTest, WithoutThreadsAScatteredHostSideIsStoredByTheKernel) {
  make("beside = \"model\"\nhost_threads = \"0\"\n", Op::write, 32768, 1);
  move_anew();
  EXPECT_FALSE(gathered(1));
}

TEST_F(CudaBesideTest, ACancelLeavesOutChunksThatThreadsWouldWrite) {
  make("beside = \"model\"\n", Op::write, 32768, 1);
  cancel_while_the_gpu_stands_still();
}

TEST_F(CudaBesideTest, ABrokenGpuEndsCopiesThatThreadsWrite) {
  make("beside = \"model\"\n", Op::write, 32768, 1);
  move_anew();
  gpu("break", 700);
  EXPECT_EQ(run(*move_), Status::kIo);
  EXPECT_EQ(move_->wait_fenced(Fence::kBoth, 20s), Status::kOk);
}

TEST_F(CudaBesideTest, TheSettingSaysWhoHasTheRightOfWay) {
  make("beside = \"copy\"\n", Op::write, 32768, 64);
  for (int i = 0; i < 3; ++i) move_anew();
  EXPECT_FALSE(gathered(1));
  EXPECT_NE(move_->route().find("\"direct\""), std::string::npos) << move_->route();
  make("", Op::write, 32768, 64);
  move_anew();
  EXPECT_FALSE(gathered(1)) << "unless it is asked for";
  make("beside = \"auto\"\n", Op::write, 32768, 64);
  for (int i = 0; i < 8; ++i) move_anew();  // both ways are tried
  EXPECT_TRUE(gathered(2 * kMany));
  EXPECT_NE(move_->route().find("gathered_gb_per_s"), std::string::npos) << move_->route();
}

TEST_F(CudaBesideTest, WithoutRoomForStagingTheKernelStores) {
  gpu("full", 1);
  make("beside = \"model\"\n", Op::write, 32768, 64);
  move_anew();
  EXPECT_FALSE(gathered(1));
}

TEST_F(CudaBesideTest, ACancelLeavesOutWhatIsNotQueuedYet) {
  make("beside = \"model\"\n", Op::write, 32768, 64);
  cancel_while_the_gpu_stands_still();
}

TEST_F(CudaBesideTest, ARefusalInTheMiddleEndsOnlyItsTransfer) {
  make("beside = \"model\"\n", Op::write, 32768, 64);
  move_anew();
  gpu("refuse", 1, 701);
  EXPECT_EQ(run(*move_), Status::kIo);
  ASSERT_EQ(move_->wait_fenced(Fence::kBoth, 20s), Status::kOk);
  move_anew();
}

TEST_F(CudaBesideTest, ReservedMultiprocessorsAreShownOrWhyThereAreNone) {
  make("beside = \"auto\"\napplication_sms = \"3\"\n", Op::write, 32768, 64);
  move_anew();
  EXPECT_TRUE(gathered(kMany)) << "where some are reserved, nothing has to be tried";
  EXPECT_NE(move_->route().find("\"reserved_sms\":1"), std::string::npos) << move_->route();
  EXPECT_NE(left_->info().find("\"reserved_sms\":1"), std::string::npos) << left_->info();
  make("beside = \"auto\"\ngreen_context = \"0x2\"\n", Op::write, 32768, 64);
  move_anew();
  EXPECT_TRUE(gathered(2 * kMany)) << "in a context that the application gave";
  EXPECT_NE(move_->route().find("\"reserved_sms\":2"), std::string::npos) << move_->route();
  make("green_context = \"500\"\n", Op::write, 32768, 64);
  move_anew();
  EXPECT_NE(move_->route().find("INVALID_HANDLE"), std::string::npos) << move_->route();
  make("reserved_sms = \"4\"\n", Op::write, 32768, 64);
  move_anew();
  EXPECT_NE(move_->route().find("\"reserved_sms\":0"), std::string::npos) << move_->route();
  EXPECT_NE(move_->route().find("leave none"), std::string::npos) << move_->route();
  EXPECT_NE(left_->info().find("leave none"), std::string::npos) << left_->info();
}

}  // namespace
}  // namespace towline::conformance
