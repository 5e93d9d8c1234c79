// A transfer's memory as code on a GPU finds it, on GPUs made of host memory.
#include <gtest/gtest.h>

#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "cuda_fixture.h"

namespace towline::conformance {
namespace {

class CudaViewTest : public CudaTest {
 protected:
  static void put(uint64_t address, const std::string& text) {
    std::memcpy(reinterpret_cast<void*>(address), text.data(), text.size());
  }
  static std::string text_at(const Buffer& memory, uint64_t offset, size_t bytes) {
    return {reinterpret_cast<const char*>(memory.data()) + offset, bytes};
  }
  // The same as view(), once the connection is there.
  static GpuView view_of(const Transfer& transfer, size_t blocks) {
    const auto until = std::chrono::steady_clock::now() + 20s;
    for (;;) try {
        return transfer.view(blocks);
      } catch (const Error& error) {
        if (error.code() != Status::kAgain || std::chrono::steady_clock::now() > until) throw;
      }
  }
  // Left's transfer to host memory of right's.
  Transfer to_host_memory(const Buffer& theirs) {
    left_region_ =
        std::make_unique<Region>(left_->register_memory(vram(left_memory_), {.access = Access::kAll}));
    right_region_ = std::make_unique<Region>(
        right_->register_memory(dram(theirs.data(), theirs.size()), {.access = Access::kAll}));
    peer_ = std::make_unique<Peer>(left_->add_peer(right_->metadata()));
    return left_->transfer(left_->block_list(pages(left_memory_)),
                           peer_->block_list(blocks_of(theirs.data(), theirs.size(), kPage)));
  }
};

TEST_F(CudaViewTest, HasAnAddressOfEachBlockOfBothSides) {
  const Transfer move = make_move();
  const GpuView found = view_of(move, kPages);
  ASSERT_NE(found.to[0], reinterpret_cast<uint64_t>(right_memory_.data())) << "not mapped anew";
  for (uint64_t i = 0; i < kPages; ++i) {
    EXPECT_EQ(found.from[i], reinterpret_cast<uint64_t>(left_memory_.data()) + i * kPage);
    put(found.to[i] + 5, "block " + std::to_string(i));
  }
  for (uint64_t i = 0; i < kPages; ++i)
    EXPECT_EQ(text_at(right_memory_, i * kPage + 5, 8),
              ("block " + std::to_string(i) + std::string(1, 0)).substr(0, 8))
        << i;
}

TEST_F(CudaViewTest, FollowsThePicks) {
  connect();
  const std::vector<uint32_t> here{3, 1, 60};
  const std::vector<uint32_t> there{7, 0, 9};
  const Transfer move = left_->transfer(left_->block_list(pages(left_memory_))[here],
                                        peer_->block_list(pages(right_memory_))[there]);
  const GpuView found = view_of(move, here.size());
  for (size_t i = 0; i < here.size(); ++i) {
    EXPECT_EQ(found.from[i], reinterpret_cast<uint64_t>(left_memory_.data()) + here[i] * kPage);
    put(found.to[i], "pick " + std::to_string(i));
    EXPECT_EQ(text_at(right_memory_, there[i] * kPage, 6), "pick " + std::to_string(i));
  }
}

TEST_F(CudaViewTest, NamesTheSidesAsTheTransferDoes) {
  connect();
  const Transfer pull =
      left_->transfer(peer_->block_list(pages(right_memory_)), left_->block_list(pages(left_memory_)));
  const GpuView found = view_of(pull, kPages);
  EXPECT_EQ(found.to[1], reinterpret_cast<uint64_t>(left_memory_.data()) + kPage);
  put(found.from[1], "theirs");
  EXPECT_EQ(text_at(right_memory_, kPage, 6), "theirs");
}

TEST_F(CudaViewTest, ReachesHostMemoryThatAPeerSharesByFile) {
  const Buffer theirs(kPage * kPages, true);
  const Transfer move = to_host_memory(theirs);
  const GpuView found = view_of(move, kPages);
  put(found.to[kPages - 1] + 1, "host");
  EXPECT_EQ(text_at(theirs, (kPages - 1) * kPage + 1, 4), "host");
}

TEST_F(CudaViewTest, HoldsWhenThePeerHasGone) {
  std::optional<Transfer> move = make_move();
  const GpuView found = view_of(*move, kPages);
  right_region_.reset();  // does not wait for code that uses it
  right_.reset();
  put(found.to[0], "nobody reads it");
  put(found.to[kPages - 1] + kPage - 1, "x");
  EXPECT_THROW((void)move->view(kPages), Error) << "no new one";
  move.reset();
  EXPECT_EQ(left_region_->deregister(20s), Status::kOk);
}

TEST_F(CudaViewTest, EndsWithItsTransfer) {
  const Transfer other = make_move();
  {
    const Transfer move =
        left_->transfer(left_->block_list(pages(left_memory_)), peer_->block_list(pages(right_memory_)));
    (void)view_of(move, kPages);
    (void)view_of(move, kPages);  // a second one is a second hold
    EXPECT_NE(move.route().find("\"mappings\":1"), std::string::npos) << move.route();
  }
  ASSERT_EQ(run(other), Status::kOk) << last_error();
  peer_.reset();
}

TEST_F(CudaViewTest, IsRefusedWithTheReason) {
  const Transfer move = make_move();
  EXPECT_NE(text_of([&] { (void)move.view(kPages + 1); }).find("there are 64 blocks, not 65"),
            std::string::npos);
  EXPECT_EQ(towline_transfer_view(nullptr, nullptr, nullptr, 0), TOWLINE_INVALID_ARGUMENT);
  EXPECT_EQ(towline_transfer_view(move.native(), nullptr, nullptr, kPages), TOWLINE_INVALID_ARGUMENT);
  (void)view_of(move, kPages);
  gpu("hold", 1);
  ASSERT_EQ(move.post(), Status::kInProgress);
  std::vector<uint64_t> out(2 * kPages);
  EXPECT_EQ(towline_transfer_view(move.native(), out.data(), out.data() + kPages, kPages), TOWLINE_BUSY);
  gpu("hold", 0);
  EXPECT_EQ(move.wait(20s), Status::kOk);
  EXPECT_EQ(view_of(move, kPages).to.size(), kPages);
}

TEST_F(CudaViewTest, IsRefusedWhereBytesGoThroughHostMemory) {
  restart("through_host = \"always\"\n");
  const Transfer move = make_move();
  const std::string text = text_of([&] { (void)view_of(move, kPages); });
  EXPECT_NE(text.find("go through host memory"), std::string::npos) << text;
  EXPECT_NE(text.find("asked for"), std::string::npos) << text;
}

TEST_F(CudaViewTest, IsRefusedByOtherTransports) {
  const AgentOptions over_tcp{.listen = "127.0.0.1:0", .backends = "tcp", .default_timeout = 20s};
  const Agent here("here", over_tcp);
  const Agent there("there", over_tcp);
  const Buffer mine(kPage, false);
  const Buffer theirs(kPage, false);
  const Region left = here.register_memory(dram(mine.data(), kPage), {.access = Access::kAll});
  const Region right = there.register_memory(dram(theirs.data(), kPage), {.access = Access::kAll});
  const Peer peer = here.add_peer(there.metadata());
  const Transfer move = here.transfer(here.block_list(blocks_of(mine.data(), kPage, kPage)),
                                      peer.block_list(blocks_of(theirs.data(), kPage, kPage)));
  const std::string text = text_of([&] { (void)move.view(1); });
  EXPECT_NE(text.find("backend 'tcp' gives code on a GPU no addresses"), std::string::npos) << text;
}

}  // namespace
}  // namespace towline::conformance
