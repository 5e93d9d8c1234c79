// Which part gets the next turn.
#include "transports/direct/job_queue.h"

#include <gtest/gtest.h>

#include <string>

#include "framing/test_support.h"

namespace towline::direct {
namespace {

constexpr uint64_t kSlices = 20;  // of a large part

// Moves one byte a turn, and writes down whose.
class Recorder final : public Mover {
 public:
  void begin(Job&) noexcept override {}
  void step(Job& job) noexcept override {
    ++job.moved.position;
    turns += static_cast<char>(job.cookie);
  }
  std::string turns;
};

class JobQueueTest : public ::testing::Test {
 protected:
  void add(char cookie, uint64_t bytes, uint32_t flags = 0) {
    const towline_submit_args args = {
        sizeof args, static_cast<uint64_t>(cookie), 0, bytes, nullptr, 0, flags, 0, nullptr};
    ASSERT_EQ(queue_.submit(prepared_, args), TOWLINE_IN_PROGRESS);
  }
  void run(uint32_t turns) {
    for (uint32_t i = 0; i < turns; ++i) (void)queue_.progress();
  }

  framing::testing::FakeHost host_;
  Recorder mover_;
  JobQueue queue_{host_.host(), 0, mover_};
  Prepared prepared_;
};

TEST_F(JobQueueTest, PartsTakeTurns) {
  add('a', 3);
  add('b', 3);
  run(6);
  EXPECT_EQ(mover_.turns, "ababab");
  EXPECT_TRUE(host_.ended('a'));
  EXPECT_TRUE(host_.ended('b'));
  EXPECT_FALSE(queue_.has_work());
}

TEST_F(JobQueueTest, AnUrgentPartGoesBeforeThoseThatWereThereFirst) {
  add('a', kSlices);
  add('b', kSlices);
  run(2);
  add('u', 4, TOWLINE_SUBMIT_URGENT);
  run(6);
  EXPECT_EQ(mover_.turns, "abuuuuab");
  EXPECT_TRUE(host_.ended('u'));
}

TEST_F(JobQueueTest, OneTurnInEightIsLeftToOthers) {
  add('a', kSlices);
  add('u', kSlices, TOWLINE_SUBMIT_URGENT);
  add('v', kSlices, TOWLINE_SUBMIT_URGENT);
  run(24);
  EXPECT_EQ(mover_.turns, "uvuvuvuavuvuvuvauvuvuvua");
}

TEST_F(JobQueueTest, CancelAndCloseFindPartsOfBothKinds) {
  add('a', kSlices);
  add('u', kSlices, TOWLINE_SUBMIT_URGENT);
  EXPECT_TRUE(queue_.cancel('u'));
  EXPECT_TRUE(queue_.cancel('a'));
  EXPECT_FALSE(queue_.cancel('x'));
  run(2);
  EXPECT_EQ(host_.status('a'), Status::kCancelled);
  EXPECT_EQ(host_.status('u'), Status::kCancelled);
  add('b', kSlices);
  add('v', kSlices, TOWLINE_SUBMIT_URGENT);
  queue_.close(Status::kPeerLost);
  EXPECT_EQ(host_.status('b'), Status::kPeerLost);
  EXPECT_EQ(host_.status('v'), Status::kPeerLost);
  EXPECT_EQ(host_.twice, 0u);
  EXPECT_EQ(mover_.turns, "");
}

}  // namespace
}  // namespace towline::direct
