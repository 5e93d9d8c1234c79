// A GPU that does not come to the end of what it was given, behind work of others that never ends: the worker
// goes on, and no fence is reported before the copy has ended. GPUs are made of host memory.
#include <gtest/gtest.h>

#include <future>
#include <thread>

#include "cuda_fixture.h"

namespace towline::conformance {
namespace {

class CudaStuckTest : public CudaStreamTest {
 protected:
  void TearDown() override {
    if (graph_ != 0) (void)stream_command_("free graph", nullptr, graph_, 0, 0);
    CudaStreamTest::TearDown();
  }

  // The left agent's worker still serves: its notice arrives at another agent.
  [[nodiscard]] bool left_goes_on() {
    Notice notice;
    if (onlooker_->send(std::as_bytes(std::span("on"))) != Status::kOk) return false;
    return third_->wait(2s) == Status::kOk && third_->receive(notice) == Status::kOk;
  }
  void add_onlooker() {
    third_ = std::make_unique<Agent>("third", options());
    onlooker_ = std::make_unique<Peer>(left_->add_peer(third_->metadata()));
    const auto until = std::chrono::steady_clock::now() + 20s;
    while (!left_goes_on()) ASSERT_LT(std::chrono::steady_clock::now(), until);
  }
  // The peer goes while a copy to it runs, posted either way.
  void lose_the_peer_while_it_moves(const Transfer& move, bool in_stream) {
    get_stuck();
    if (in_stream)
      ASSERT_EQ(move.post_on(stream_), Status::kInProgress) << last_error();
    else
      ASSERT_EQ(move.post(), Status::kInProgress) << last_error();
    wait_until_stuck();
    std::future<void> ending = std::async(std::launch::async, [&] {
      right_.reset();
      right_region_.reset();
    });
    EXPECT_EQ(move.wait(5s), Status::kPeerLost);
    EXPECT_TRUE(left_goes_on());
    EXPECT_EQ(move.wait_fenced(Fence::kLocal, 100ms), Status::kNotYet);
    let_go();
    EXPECT_EQ(move.wait_fenced(Fence::kBoth, 20s), Status::kOk);
    ending.wait();
  }

  uint64_t graph_ = 0;
  std::unique_ptr<Agent> third_;
  std::unique_ptr<Peer> onlooker_;
};

TEST_F(CudaStuckTest, ALostPeersFenceWaitsForACopyWhileTheWorkerGoesOn) {
  const Transfer move = make_move();
  ASSERT_EQ(run(move), Status::kOk) << last_error();
  add_onlooker();
  lose_the_peer_while_it_moves(move, false);
}

TEST_F(CudaStuckTest, ALostPeersFenceWaitsForACopyInAStreamWhileTheWorkerGoesOn) {
  const Transfer move = make_move();
  ASSERT_EQ(run(move), Status::kOk) << last_error();
  add_onlooker();
  lose_the_peer_while_it_moves(move, true);
}

TEST_F(CudaStuckTest, ALostPeersFenceWaitsForACopyThroughHostMemoryWhileTheWorkerGoesOn) {
  restart("through_host = \"always\"\n");
  const Transfer move = make_move();
  ASSERT_EQ(run(move), Status::kOk) << last_error();
  add_onlooker();
  lose_the_peer_while_it_moves(move, false);
}

TEST_F(CudaStuckTest, AnOwnersRegionWaitsForACopyThatALostPeerAskedFor) {
  restart("through_host = \"always\"\n");
  left_region_ =
      std::make_unique<Region>(left_->register_memory(vram(left_memory_), {.access = Access::kAll}));
  right_region_ =
      std::make_unique<Region>(right_->register_memory(vram(right_memory_), {.access = Access::kAll}));
  peer_ = std::make_unique<Peer>(left_->add_peer(right_->metadata()));
  {
    const Transfer read =
        left_->transfer(peer_->block_list(pages(right_memory_)), left_->block_list(pages(left_memory_)));
    get_stuck();
    ASSERT_EQ(read.post(), Status::kInProgress) << last_error();
    wait_until_stuck();  // the owner fills
    left_.reset();
    left_region_.reset();
  }
  EXPECT_EQ(right_region_->deregister(200ms), Status::kNotYet);
  let_go();
  EXPECT_EQ(right_region_->deregister(20s), Status::kOk) << last_error();
}

TEST_F(CudaStuckTest, DeregisteringWaitsForACopyThatAGraphHasBegun) {
  const Transfer move = make_move();
  add_onlooker();
  (void)stream_command_("record", stream_, 0, 0, 0);
  ASSERT_EQ(move.post_on(stream_), Status::kOk) << last_error();
  graph_ = stream_command_("end", stream_, 0, 0, 0);
  get_stuck();
  (void)stream_command_("replay", stream_, graph_, 0, 0);
  wait_until_stuck();
  EXPECT_EQ(right_region_->deregister(100ms), Status::kNotYet);
  EXPECT_TRUE(left_goes_on());
  EXPECT_EQ(left_region_->deregister(100ms), Status::kNotYet);
  EXPECT_FALSE(arrived());
  let_go();
  EXPECT_EQ(right_region_->deregister(20s), Status::kOk) << last_error();
  EXPECT_TRUE(arrived());
  (void)stream_command_("drain", stream_, 0, 0, 0);
}

TEST_F(CudaStuckTest, AnAgentThatEndsMeanwhileReportsNoFenceAndUnmapsNothing) {
  const Transfer move = make_move();
  ASSERT_EQ(run(move), Status::kOk) << last_error();
  std::memset(right_memory_.data(), 0, right_memory_.size());
  get_stuck();
  ASSERT_EQ(move.post(), Status::kInProgress) << last_error();
  wait_until_stuck();
  std::future<void> ending = std::async(std::launch::async, [&] { left_.reset(); });
  EXPECT_EQ(ending.wait_for(20s), std::future_status::ready);
  EXPECT_EQ(move.poll(), Status::kClosed);
  EXPECT_EQ(move.wait_fenced(Fence::kLocal, 1ms), Status::kUnsupported);
  let_go();
  ending.wait();
  while (!arrived()) std::this_thread::yield();  // it writes to what is still mapped
}

}  // namespace
}  // namespace towline::conformance
