// The cuda transport on GPUs made of host memory: bad memory, bad GPUs, bad days.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <thread>

#include "cuda_fixture.h"

namespace towline::conformance {
namespace {

TEST_F(CudaTest, MemoryOnAnotherGpuOrOnNoneIsRefusedClearly) {
  const auto refusal = [&](const MemoryView& view) {
    return text_of([&] { (void)left_->register_memory(view); });
  };
  EXPECT_NE(refusal(vram(left_memory_, 7)).find("there is no GPU 7"), std::string::npos);
  EXPECT_NE(refusal(vram(left_memory_, 1)).find("lies on GPU 0"), std::string::npos);
  gpu("forget", reinterpret_cast<uint64_t>(left_memory_.data()) + kPage, kPage);
  EXPECT_NE(refusal({.address = left_memory_.data() + kPage, .bytes = kPage, .kind = Kind::kVram})
                .find("no GPU memory"),
            std::string::npos);
}

TEST_F(CudaTest, MemoryTakenAwayUnderARegionIsFoundBeforeItIsUsed) {
  const Region here = left_->register_memory(vram(left_memory_));
  const Region there = right_->register_memory(vram(right_memory_));
  const Peer peer = left_->add_peer(right_->metadata());
  gpu("forget", reinterpret_cast<uint64_t>(right_memory_.data()), right_memory_.size());
  const auto attempt = [&] {
    (void)left_->transfer(Op::write, left_->block_list(pages(left_memory_)),
                          peer.block_list(pages(right_memory_)));
  };
  EXPECT_NE(text_of(attempt).find("the owner says: cuda: no GPU memory"), std::string::npos)
      << text_of(attempt);
  gpu("reset");
  gpu("forget", reinterpret_cast<uint64_t>(left_memory_.data()), left_memory_.size());
  EXPECT_NE(text_of(attempt).find("any more"), std::string::npos) << text_of(attempt);
  gpu("reset");
  EXPECT_EQ(text_of(attempt), "it went well");
}

TEST_F(CudaTest, ARegionOverSeveralAllocationsIsMappedAsOne) {
  constexpr uint64_t kPart = 16 * kPage;
  constexpr uint64_t kParts = 3;
  void* const range = mmap(nullptr, kPart * kParts, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(range, MAP_FAILED);
  for (uint64_t i = 0; i < kParts; ++i) {
    const int fd = memfd_create("part", MFD_CLOEXEC);
    ASSERT_EQ(ftruncate(fd, kPart), 0);
    ASSERT_NE(mmap(static_cast<std::byte*>(range) + i * kPart, kPart, PROT_READ | PROT_WRITE,
                   MAP_SHARED | MAP_FIXED, fd, 0),
              MAP_FAILED);
    close(fd);
  }
  auto* const data = static_cast<std::byte*>(range) + 5 * kPage;  // neither end is an allocation's
  constexpr uint64_t kBytes = kPart * kParts - 9 * kPage;
  {
    stamp(left_memory_.data(), left_memory_.size(), 3);
    const Region here = left_->register_memory(vram(left_memory_));
    const Region there = right_->register_memory({.address = data, .bytes = kBytes, .kind = Kind::kVram});
    const Peer peer = left_->add_peer(right_->metadata());
    const Transfer move =
        left_->transfer(Op::write, left_->block_list(Blocks::at(left_memory_.data(), kBytes, Kind::kVram)),
                        peer.block_list(Blocks::at(data, kBytes, Kind::kVram)));
    ASSERT_EQ(run(move), Status::kOk) << last_error();
    EXPECT_EQ(std::memcmp(data, left_memory_.data(), kBytes), 0);
    EXPECT_NE(move.route().find("VMM descriptor"), std::string::npos) << move.route();
  }
  munmap(range, kPart * kParts);
}

TEST_F(CudaTest, PlainHostMemoryIsPinnedForTheGpu) {
  const Region there = right_->register_memory(vram(right_memory_));
  const Peer peer = left_->add_peer(right_->metadata());
  const Buffer host(kPage * kPages, false);
  stamp(host.data(), host.size(), 4);
  const Region here = left_->register_memory(dram(host.data(), host.size()));
  ASSERT_EQ(run(left_->transfer(Op::write, left_->block_list(blocks_of(host.data(), host.size(), kPage)),
                                peer.block_list(pages(right_memory_)))),
            Status::kOk)
      << last_error();
  EXPECT_EQ(std::memcmp(host.data(), right_memory_.data(), host.size()), 0);
}

TEST_F(CudaTest, ALaunchThatIsRefusedEndsOnlyItsTransfer) {
  const Transfer move = make_move();
  ASSERT_EQ(run(move), Status::kOk) << last_error();
  gpu("refuse", 1, 701);
  EXPECT_EQ(run(move), Status::kIo);
  // After a failure the outcome comes before the fence, and only then may it be posted again.
  ASSERT_EQ(move.wait_fenced(Fence::kBoth, 20s), Status::kOk);
  EXPECT_EQ(run(move), Status::kOk) << last_error();
}

TEST_F(CudaTest, ABrokenGpuIsNoticedAndNamed) {
  const Transfer move = make_move();
  ASSERT_EQ(run(move), Status::kOk) << last_error();
  gpu("break", 700);
  EXPECT_EQ(run(move), Status::kIo);
  const Result result = move.result();
  EXPECT_EQ(result.bytes, 0u);
  ASSERT_EQ(result.failed_ranges, 1u);
  EXPECT_EQ(result.failed[0].vendor_code, 700);
  EXPECT_EQ(result.failed[0].count, kPages);
}

TEST_F(CudaTest, TheFenceWaitsForACopyThatCannotBeCalledBack) {
  ASSERT_EQ(run(make_move()), Status::kOk) << last_error();  // connected
  const Transfer move = left_->transfer(Op::write, left_->block_list(pages(left_memory_)),
                                        peer_->block_list(pages(right_memory_)), {.timeout = 1s});
  stamp(left_memory_.data(), left_memory_.size(), 6);
  gpu("hold", 1);
  EXPECT_EQ(run(move), Status::kTimedOut);
  EXPECT_EQ(move.wait_fenced(Fence::kBoth, 1ms), Status::kTimedOut);
  EXPECT_EQ(move.post(), Status::kBusy);
  gpu("hold", 0);
  EXPECT_EQ(move.wait_fenced(Fence::kBoth, 20s), Status::kOk);
  EXPECT_EQ(std::memcmp(right_memory_.data(), left_memory_.data(), right_memory_.size()), 0);
  EXPECT_EQ(move.poll(), Status::kTimedOut) << "an outcome never changes";
}

TEST_F(CudaTest, WhatIsUnderWayIsBoundedAndAllOfItEnds) {
  const Transfer first = make_move();
  ASSERT_EQ(run(first), Status::kOk) << last_error();
  std::vector<Transfer> moves;
  for (uint32_t i = 0; i < 300; ++i)
    moves.push_back(left_->transfer(Op::write, left_->block_list(pages(left_memory_)),
                                    Range{i % kPages, 1, 1}, peer_->block_list(pages(right_memory_)),
                                    Range{i % kPages, 1, 1}));
  gpu("hold", 1);
  std::vector<Status> posted;
  for (const Transfer& move : moves) posted.push_back(move.post());
  gpu("hold", 0);
  uint32_t taken = 0;
  for (size_t i = 0; i < moves.size(); ++i) {
    if (posted[i] != Status::kInProgress) {
      EXPECT_EQ(posted[i], Status::kAgain) << i;
      continue;
    }
    ++taken;
    EXPECT_EQ(moves[i].wait(20s), Status::kOk) << i;
  }
  EXPECT_GE(taken, 200u);
}

TEST_F(CudaTest, AnAgentThatEndsWaitsForWhatItsGpuWrites) {
  const Transfer move = make_move();
  ASSERT_EQ(run(move), Status::kOk) << last_error();
  stamp(left_memory_.data(), left_memory_.size(), 7);
  gpu("hold", 1);
  ASSERT_EQ(move.post(), Status::kInProgress);
  std::thread letting_go([&] { gpu("hold", 0); });
  move.cancel();
  EXPECT_EQ(move.wait_fenced(Fence::kBoth, 20s), Status::kOk);
  letting_go.join();
}

TEST_F(CudaTest, BadSettingsAreNamed) {
  for (const auto& [setting, wanted] : {std::pair{"blocks = \"0\"\n", "cuda.blocks"},
                                        {"gpu = \"x\"\n", "cuda.gpu"},
                                        {"through_host = \"maybe\"\n", "cuda.through_host"},
                                        {"pin = \"yes\"\n", "cuda.pin"},
                                        {"host_threads = \"-1\"\n", "cuda.host_threads"},
                                        {"copy_engine_bytes = \"many\"\n", "cuda.copy_engine_bytes"}}) {
    const Agent agent("agent", options(setting));
    EXPECT_NE(agent.info().find(wanted), std::string::npos) << agent.info();
  }
}

}  // namespace
}  // namespace towline::conformance
