// Transfers in the order of streams, and in graphs, on GPUs made of host memory.
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "cuda_fixture.h"
#include "support/failing_allocations.h"

namespace towline::conformance {
namespace {

class CudaStreamsTest : public CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (HasFatalFailure()) return;
    stream_ = make_stream(0);
    stamp(left_memory_.data(), left_memory_.size(), 1);
  }
  void TearDown() override {
    if (command_ != nullptr) gpu("reset");
    if (stream_command_ != nullptr)
      for (void* stream : streams_) (void)stream_command_("free", stream, 0, 0, 0);
    for (const uint64_t graph : graphs_) (void)stream_command_("free graph", nullptr, graph, 0, 0);
    CudaTest::TearDown();
  }

  void* make_stream(uint64_t gpu) {
    void* const stream = reinterpret_cast<void*>(stream_command_("make", nullptr, gpu, 0, 0));
    streams_.push_back(stream);
    return stream;
  }
  void stream(const char* command, uint64_t a = 0, uint64_t b = 0, uint64_t c = 0) {
    (void)stream_command_(command, stream_, a, b, c);
  }
  // Like a graph of one post.
  uint64_t recorded(const Transfer& move) {
    stream("record");
    EXPECT_EQ(move.post_on(stream_), Status::kOk) << last_error();
    graphs_.push_back(stream_command_("end", stream_, 0, 0, 0));
    return graphs_.back();
  }
  void replay(uint64_t graph) {
    stream("replay", graph);
    stream("drain");
  }
  // The stream copies one memory to another once it gets there.
  void copy_in_stream(Buffer& to, const Buffer& from) {
    stream("copy", reinterpret_cast<uint64_t>(to.data()), reinterpret_cast<uint64_t>(from.data()), to.size());
  }

  void* stream_ = nullptr;
  std::vector<void*> streams_;
  std::vector<uint64_t> graphs_;
};

TEST_F(CudaStreamsTest, APostOnAStreamComesAfterWhatTheStreamHolds) {
  const Transfer move = make_move({.notice = "moved"});
  Buffer made(left_memory_.size(), false);
  stamp(made.data(), made.size(), 2);
  stream("hold", 1);
  copy_in_stream(left_memory_, made);
  ASSERT_EQ(move.post_on(stream_), Status::kInProgress) << last_error();
  EXPECT_EQ(move.wait(5ms), Status::kNotYet);
  EXPECT_EQ(move.post_on(stream_), Status::kBusy);
  Buffer seen(left_memory_.size(), false);
  copy_in_stream(seen, right_memory_);
  stream("hold", 0);
  ASSERT_EQ(move.wait(20s), Status::kOk);
  EXPECT_EQ(std::memcmp(right_memory_.data(), made.data(), made.size()), 0);
  stream("drain");
  EXPECT_EQ(std::memcmp(seen.data(), made.data(), made.size()), 0) << "what the stream was given later";
  Notice notice;
  while (right_->receive(notice) != Status::kOk) ASSERT_EQ(right_->wait(20s), Status::kOk);
  EXPECT_EQ(notice.text(), "moved");
}

TEST_F(CudaStreamsTest, AFreshTransfersListIsThereBeforeAStreamReadsIt) {
  ASSERT_EQ(run(make_move()), Status::kOk) << last_error();  // connected
  std::vector<uint32_t> picks(kPages / 2);
  for (uint32_t i = 0; i < picks.size(); ++i) picks[i] = (i * 37) % kPages;
  for (const bool in_graph : {false, true}) {
    stamp(left_memory_.data(), left_memory_.size(), in_graph ? 5 : 4);
    gpu("hold lists", 1);
    const Transfer move = left_->transfer(left_->block_list(pages(left_memory_))[picks],
                                          peer_->block_list(pages(right_memory_))[picks]);
    if (in_graph) {
      std::thread letting_go([&] { gpu("hold lists", 0); });
      const uint64_t graph = recorded(move);
      letting_go.join();
      replay(graph);
    } else {
      ASSERT_EQ(move.post_on(stream_), Status::kInProgress) << last_error();
      EXPECT_EQ(move.wait(5ms), Status::kNotYet);
      gpu("hold lists", 0);
      ASSERT_EQ(move.wait(20s), Status::kOk);
    }
    for (const uint32_t page : picks)
      ASSERT_EQ(std::memcmp(right_memory_.data() + page * kPage, left_memory_.data() + page * kPage, kPage),
                0)
          << page << ' ' << in_graph;
  }
}

TEST_F(CudaStreamsTest, TheDefaultStreamServesAsWellAndPostsFollowOneAnother) {
  const Transfer move = make_move();
  for (uint64_t i = 0; i < 200; ++i) {
    stamp(left_memory_.data(), left_memory_.size(), i);
    ASSERT_EQ(move.post_on(i % 2 == 0 ? nullptr : stream_), Status::kInProgress) << last_error();
    ASSERT_EQ(move.wait(20s), Status::kOk);
    ASSERT_TRUE(arrived()) << i;
    if (i % 3 == 0) {
      ASSERT_EQ(run(move), Status::kOk);
    }
  }
}

TEST_F(CudaStreamsTest, AStreamCanWaitForAnyPost) {
  const Transfer move = make_move();
  EXPECT_EQ(move.wait_on(stream_), Status::kNotFound);
  ASSERT_EQ(run(move), Status::kOk) << last_error();
  Buffer seen(left_memory_.size(), false);
  for (const bool in_stream : {false, true}) {
    stamp(left_memory_.data(), left_memory_.size(), in_stream ? 8 : 9);
    void* const other = make_stream(0);
    gpu("hold", 1);
    if (in_stream)
      ASSERT_EQ(move.post_on(other), Status::kInProgress);
    else
      ASSERT_EQ(move.post(), Status::kInProgress);
    ASSERT_EQ(move.wait_on(stream_), Status::kOk) << last_error();
    copy_in_stream(seen, right_memory_);
    gpu("hold", 0);
    ASSERT_EQ(move.wait(20s), Status::kOk);
    stream("drain");
    EXPECT_EQ(std::memcmp(seen.data(), left_memory_.data(), seen.size()), 0) << in_stream;
  }
}

TEST_F(CudaStreamsTest, OnceCancelledOrLateTheStreamMovesNothingAndItsFenceIsThere) {
  const Transfer move = make_move();
  ASSERT_EQ(run(move), Status::kOk) << last_error();  // connected
  std::memset(right_memory_.data(), 0, right_memory_.size());
  const Transfer late = left_->transfer(left_->block_list(pages(left_memory_)),
                                        peer_->block_list(pages(right_memory_)), {.timeout = 1s});
  const Buffer before(right_memory_.size(), false);
  stream("hold", 1);
  ASSERT_EQ(move.post_on(stream_), Status::kInProgress) << last_error();
  move.cancel();
  EXPECT_EQ(move.wait(20s), Status::kCancelled);
  EXPECT_EQ(move.wait_fenced(Fence::kBoth, 20s), Status::kOk) << "although the stream has not come to it";
  ASSERT_EQ(move.post_on(stream_), Status::kInProgress) << "with a valve of its own";
  move.cancel();
  ASSERT_EQ(late.post_on(stream_), Status::kInProgress) << last_error();
  EXPECT_EQ(late.wait(20s), Status::kTimedOut);
  EXPECT_EQ(late.wait_fenced(Fence::kBoth, 20s), Status::kOk);
  EXPECT_EQ(move.wait_fenced(Fence::kBoth, 20s), Status::kOk);
  stream("hold", 0);
  stream("drain");
  EXPECT_EQ(std::memcmp(right_memory_.data(), before.data(), before.size()), 0);
  ASSERT_EQ(move.post_on(stream_), Status::kInProgress) << last_error();
  EXPECT_EQ(move.wait(20s), Status::kOk);
  EXPECT_TRUE(arrived());
}

TEST_F(CudaStreamsTest, ACopyThatTheStreamHasBegunIsWaitedFor) {
  const Transfer move = make_move();
  gpu("hold", 1);
  ASSERT_EQ(move.post_on(stream_), Status::kInProgress) << last_error();
  while (!command_("held", 0, 0, 0)) std::this_thread::yield();
  move.cancel();
  EXPECT_EQ(move.wait(20s), Status::kCancelled);
  EXPECT_EQ(move.wait_fenced(Fence::kBoth, 1ms), Status::kNotYet);
  gpu("hold", 0);
  EXPECT_EQ(move.wait_fenced(Fence::kBoth, 20s), Status::kOk);
}

TEST_F(CudaStreamsTest, AGraphMovesEachTimeItIsReplayed) {
  const Transfer move = make_move();
  const uint64_t graph = recorded(move);
  EXPECT_EQ(move.poll(), Status::kNotFound) << "nothing was posted";
  EXPECT_FALSE(arrived());
  for (uint64_t i = 0; i < 5; ++i) {
    stamp(left_memory_.data(), left_memory_.size(), 20 + i);
    replay(graph);
    ASSERT_TRUE(arrived()) << i;
    ASSERT_EQ(run(move), Status::kOk) << "beside it";
  }
  const Replays fared = move.replays();
  EXPECT_EQ(fared.begun, 5u);
  EXPECT_EQ(fared.ended, 5u);
  EXPECT_EQ(fared.refused, 0u);
  EXPECT_EQ(fared.status, TOWLINE_OK);
  stream("record");
  EXPECT_EQ(move.wait_on(stream_), Status::kUnsupported) << "captured in another graph";
  EXPECT_NE(std::string(last_error()).find("records a graph"), std::string::npos) << last_error();
  graphs_.push_back(stream_command_("end", stream_, 0, 0, 0));
}

TEST_F(CudaStreamsTest, ACaptureWithoutMemoryIsRefused) {
  const Transfer move = make_move();
  ASSERT_EQ(move.post_on(nullptr), Status::kInProgress) << last_error();  // the fake makes its default stream
  ASSERT_EQ(move.wait(20s), Status::kOk);
  int after = 0;
  for (Status status = Status::kOutOfMemory; status != Status::kOk && after < 1000; ++after) {
    stream("record");
    support::fail_allocations(after, 1);
    status = move.post_on(stream_);
    (void)support::stop_failing();
    // A GPU's own lack of memory is an I/O error.
    EXPECT_TRUE(status == Status::kOk || status == Status::kOutOfMemory || status == Status::kIo)
        << last_error();
    graphs_.push_back(stream_command_("end", stream_, 0, 0, 0));
  }
  EXPECT_GT(after, 1);
  EXPECT_LT(after, 1000);
  stamp(left_memory_.data(), left_memory_.size(), 9);
  replay(graphs_.back());
  EXPECT_TRUE(arrived());
}

TEST_F(CudaStreamsTest, AReplayAgainstAPeerThatIsGoneIsAnErrorAndMovesNothing) {
  const Transfer move = make_move();
  const uint64_t graph = recorded(move);
  replay(graph);
  ASSERT_TRUE(arrived());
  right_region_.reset();
  right_.reset();
  const auto until = std::chrono::steady_clock::now() + 20s;
  while (move.replays().status == TOWLINE_OK && std::chrono::steady_clock::now() < until) (void)move.poll();
  const std::vector<std::byte> before(right_memory_.data(), right_memory_.data() + right_memory_.size());
  stamp(left_memory_.data(), left_memory_.size(), 30);
  replay(graph);
  EXPECT_EQ(std::memcmp(right_memory_.data(), before.data(), before.size()), 0);
  const Replays fared = move.replays();
  EXPECT_EQ(fared.ended, 2u);
  EXPECT_EQ(fared.refused, 1u);
  EXPECT_NE(fared.status, TOWLINE_OK);
  EXPECT_LT(static_cast<int32_t>(move.post_on(stream_)), 0);
}

TEST_F(CudaStreamsTest, AGraphMayOutliveItsTransferAndTheAgents) {
  uint64_t graph = 0;
  {
    const Transfer move = make_move();
    graph = recorded(move);
    replay(graph);
    ASSERT_TRUE(arrived());
  }
  stamp(left_memory_.data(), left_memory_.size(), 40);
  replay(graph);
  EXPECT_FALSE(arrived());
  peer_.reset();
  left_region_.reset();
  right_region_.reset();
  left_.reset();
  right_.reset();
  replay(graph);
  EXPECT_FALSE(arrived());
}

TEST_F(CudaStreamsTest, WhatCannotBeOrderedInAStreamSaysWhy) {
  const Transfer with_notice = make_move({.notice = "moved"});
  stream("record");
  EXPECT_EQ(with_notice.post_on(stream_), Status::kUnsupported);
  EXPECT_NE(std::string(last_error()).find("notice"), std::string::npos) << last_error();
  graphs_.push_back(stream_command_("end", stream_, 0, 0, 0));
  const Transfer move =
      left_->transfer(left_->block_list(pages(left_memory_)), peer_->block_list(pages(right_memory_)));
  EXPECT_EQ(move.post_on(make_stream(1)), Status::kInvalidArgument);
  EXPECT_NE(std::string(last_error()).find("not of GPU 0"), std::string::npos) << last_error();
  gpu("refuse", 1, 701);
  EXPECT_EQ(move.post_on(stream_), Status::kIo);
  EXPECT_NE(std::string(last_error()).find("701"), std::string::npos) << last_error();
  ASSERT_EQ(move.post_on(stream_), Status::kInProgress) << "the refusal had no other effect";
  EXPECT_EQ(move.wait(20s), Status::kOk);

  const Agent plain("plain", {.listen = "none", .backends = "memory"});
  const Memory memory(kPage);
  const Region region = plain.register_memory(dram(memory), {.access = Access::kAll});
  const BlockList list = plain.block_list(blocks_of(memory.data(), kPage, kPage));
  const Transfer other = plain.transfer(list, list);
  EXPECT_EQ(other.post_on(stream_), Status::kUnsupported);
  EXPECT_NE(std::string(last_error()).find("'memory'"), std::string::npos) << last_error();
  EXPECT_EQ(towline_transfer_post_on(nullptr, stream_), TOWLINE_INVALID_ARGUMENT);
  EXPECT_EQ(towline_transfer_wait_on(nullptr, stream_), TOWLINE_INVALID_ARGUMENT);
  EXPECT_EQ(towline_transfer_replays(other.native(), nullptr), TOWLINE_INVALID_ARGUMENT);
}

TEST_F(CudaStreamsTest, AValveWhoseCopyWasRefusedIsNotUsedAgain) {
  const Transfer move = make_move();
  gpu("refuse behind valves", 1, 701);
  EXPECT_EQ(move.post_on(stream_), Status::kIo);
  stream("drain");
  gpu("hold", 1);
  ASSERT_EQ(move.post_on(stream_), Status::kInProgress) << last_error();
  while (!command_("held", 0, 0, 0)) std::this_thread::yield();
  move.cancel();
  EXPECT_EQ(move.wait_fenced(Fence::kBoth, 50ms), Status::kNotYet) << "while the copy runs";
  gpu("hold", 0);
  EXPECT_EQ(move.wait_fenced(Fence::kBoth, 20s), Status::kOk);
  EXPECT_EQ(move.wait_on(stream_), Status::kOk) << last_error();
}

TEST_F(CudaStreamsTest, AnAgentThatEndsLeavesNothingToItsStreams) {
  const Transfer move = make_move();
  stream("hold", 1);
  ASSERT_EQ(move.post_on(stream_), Status::kInProgress) << last_error();
  left_.reset();
  EXPECT_EQ(move.poll(), Status::kClosed);
  stream("hold", 0);
  stream("drain");
  EXPECT_FALSE(arrived());
}

}  // namespace
}  // namespace towline::conformance
