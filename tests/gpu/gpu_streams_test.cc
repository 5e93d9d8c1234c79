// Transfers in the order of streams and in CUDA graphs, on real GPUs: with another process, which may die.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <thread>

#include "gpu/gpu_fixture.h"
#include "support/directed.h"

namespace towline::gpu_test {
namespace {

class Streams : public Gpu, public ::testing::WithParamInterface<Sort> {
 protected:
  static constexpr uint64_t kPage = 32768;

  void SetUp() override {
    Gpu::SetUp();
    if (cuda_ == nullptr) return;
    target_ = std::make_unique<Target>(other_, kBytes, GetParam());
    memory_ = std::make_unique<GpuMemory>(*cuda_, 0, kBytes, GetParam());
    spare_ = std::make_unique<GpuMemory>(*cuda_, 0, kBytes, Sort::kPlain);
    agent_ = std::make_unique<Agent>("initiator", over_cuda());
    region_ = std::make_unique<Region>(agent_->register_memory(view(*memory_), {.access = Access::kAll}));
    peer_ = std::make_unique<Peer>(agent_->add_peer(std::as_bytes(std::span(target_->metadata()))));
    stream_ = std::make_unique<Stream>(*cuda_, 0);
  }
  void TearDown() override {
    peer_.reset();
    region_.reset();
    agent_.reset();
  }

  [[nodiscard]] Transfer make_move(Op op, TransferOptions options = {}) {
    constexpr uint64_t kPages = kBytes / kPage;
    return directed(*agent_, op, agent_->block_list(at(memory_->address(), kPage, 0).repeat(kPages, kPage)),
                    peer_->block_list(at(target_->address(), kPage, target_->gpu()).repeat(kPages, kPage)),
                    options);
  }
  // Work that keeps the stream busy for some milliseconds and ends with `seed` in our memory.
  void fill_late(uint64_t seed) {
    spare_->put(stamped(kBytes, seed));
    for (unsigned i = 0; i < 200; ++i) stream_->fill(memory_->address(), i, kBytes);
    stream_->copy(memory_->address(), spare_->address(), kBytes);
  }

  std::unique_ptr<Target> target_;
  std::unique_ptr<GpuMemory> memory_;
  std::unique_ptr<GpuMemory> spare_;
  std::unique_ptr<Agent> agent_;
  std::unique_ptr<Region> region_;
  std::unique_ptr<Peer> peer_;
  std::unique_ptr<Stream> stream_;
};

TEST_P(Streams, APostOnAStreamComesAfterWhatItHoldsAndBeforeWhatItGetsLater) {
  const Transfer move = make_move(Op::write, {.notice = "moved"});
  for (uint64_t round = 0; round < 20; ++round) {
    fill_late(round);
    ASSERT_EQ(move.post_on(stream_->native()), Status::kInProgress) << last_error();
    stream_->fill(memory_->address(), 0xdead, kBytes);
    ASSERT_EQ(move.wait(60s), Status::kOk) << last_error();
    ASSERT_TRUE(target_->get() == stamped(kBytes, round)) << round;
    stream_->drain();
  }
}

TEST_P(Streams, AStreamWaitsForAPost) {
  const Transfer move = make_move(Op::read);
  Stream other(*cuda_, 0);
  for (uint64_t round = 0; round < 20; ++round) {
    target_->stamp(round);
    if (round % 2 == 0)
      ASSERT_EQ(move.post(), Status::kInProgress);
    else
      ASSERT_EQ(move.post_on(other.native()), Status::kInProgress);
    ASSERT_EQ(move.wait_on(stream_->native()), Status::kOk) << last_error();
    stream_->copy(spare_->address(), memory_->address(), kBytes);
    stream_->fill(memory_->address(), 0xdead, kBytes);
    stream_->drain();
    ASSERT_TRUE(spare_->get() == stamped(kBytes, round)) << round;
    ASSERT_EQ(move.wait(60s), Status::kOk);
  }
}

TEST_P(Streams, AGraphMovesEachTimeWhileOthersPost) {
  const Transfer move = make_move(Op::write);
  const Transfer beside = make_move(Op::read);
  stream_->record();
  stream_->copy(memory_->address(), spare_->address(), kBytes);
  ASSERT_EQ(move.post_on(stream_->native()), Status::kOk) << last_error();
  ASSERT_EQ(move.wait_on(stream_->native()), Status::kOk) << last_error();
  // Neither a post nor a first queue, list or pinned page of another thread spoils what is being recorded.
  std::thread([&] {
    ASSERT_EQ(run(beside), Status::kOk) << last_error();
    const BlockList mine = agent_->block_list(at(memory_->address(), 512, 0).repeat(1000, 1024));
    const BlockList theirs =
        peer_->block_list(at(target_->address(), 512, target_->gpu()).repeat(1000, 4096));
    std::vector<uint32_t> picks;
    for (uint32_t i = 0; i < 1000; ++i) picks.push_back((i * 37) % 1000);
    ASSERT_EQ(run(agent_->transfer(theirs[picks], mine[picks])), Status::kOk) << last_error();
  }).join();
  stream_->fill(memory_->address(), 0xdead, kBytes);
  stream_->end_record();
  for (uint64_t round = 0; round < 10; ++round) {
    spare_->put(stamped(kBytes, 100 + round));
    stream_->replay();
    ASSERT_TRUE(target_->get() == stamped(kBytes, 100 + round)) << round;
  }
  const Replays fared = move.replays();
  EXPECT_EQ(fared.begun, 10u);
  EXPECT_EQ(fared.ended, 10u);
  EXPECT_EQ(fared.refused, 0u);
}

TEST_P(Streams, AReplayAgainstAKilledPeerIsAnErrorAndTheGpuGoesOn) {
  const Transfer move = make_move(Op::write);
  stream_->record();
  ASSERT_EQ(move.post_on(stream_->native()), Status::kOk) << last_error();
  stream_->end_record();
  stream_->replay();
  target_->kill_it();
  const auto until = std::chrono::steady_clock::now() + 30s;
  while (move.replays().status == TOWLINE_OK && std::chrono::steady_clock::now() < until) stream_->replay();
  EXPECT_EQ(move.replays().status, TOWLINE_PEER_LOST);
  const uint64_t refused = move.replays().refused;
  stream_->replay();
  EXPECT_EQ(move.replays().refused, refused + 1);
  peer_.reset();
  target_ = std::make_unique<Target>(other_, kBytes, GetParam());
  stream_->replay();
  peer_ = std::make_unique<Peer>(agent_->add_peer(std::as_bytes(std::span(target_->metadata()))));
  ASSERT_EQ(run(make_move(Op::write)), Status::kOk) << last_error();
}

TEST_P(Streams, WhatIsCancelledBeforeItsTurnMovesNothing) {
  const Transfer move = make_move(Op::write);
  target_->stamp(1);
  fill_late(2);
  ASSERT_EQ(move.post_on(stream_->native()), Status::kInProgress) << last_error();
  move.cancel();
  ASSERT_EQ(move.wait_fenced(Fence::kBoth, 60s), Status::kOk);
  const bool begun = target_->get() == stamped(kBytes, 2);
  stream_->drain();
  EXPECT_TRUE(begun || target_->get() == stamped(kBytes, 1));
  ASSERT_EQ(move.post_on(stream_->native()), Status::kInProgress) << last_error();
  ASSERT_EQ(move.wait(60s), Status::kOk);
  EXPECT_TRUE(target_->get() == stamped(kBytes, 2));
}

TEST_P(Streams, AGraphOutlivesEverything) {
  {
    const Transfer move = make_move(Op::write);
    stream_->record();
    ASSERT_EQ(move.post_on(stream_->native()), Status::kOk) << last_error();
    stream_->end_record();
    stream_->replay();
  }
  TearDown();
  memory_.reset();
  target_.reset();
  stream_->replay();
}

INSTANTIATE_TEST_SUITE_P(All, Streams, ::testing::Values(Sort::kPlain, Sort::kVmm), [](const auto& tested) {
  return tested.param == Sort::kPlain ? "cudaMalloc" : "vmm";
});

}  // namespace
}  // namespace towline::gpu_test
