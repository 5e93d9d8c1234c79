// What a waiting kernel of collectives makes of ranks that are gone, or at another operation.
#include <gtest/gtest.h>

#include <string.h>

#include <vector>

#include "collectives/gpu/marks.h"
#include "collectives/gpu/operations.h"

namespace towline::collectives::gpu {
namespace {

class Waiting : public testing::Test {
 protected:
  Waiting() {
    job_.rank = 0;
    job_.size = 3;
    job_.timeout_ns = UINT64_MAX;
    for (uint32_t rank = 0; rank < job_.size; ++rank)
      job_.segment[rank] = reinterpret_cast<uint64_t>(&controls_[rank]);
    job_.orders = reinterpret_cast<uint64_t>(&orders_);
    job_.report[0] = reinterpret_cast<uint64_t>(&report_);
  }
  // Looks for `peer` until something ends the wait, but at most for a few rounds of looks.
  bool gives_up(Waiter& waiter, uint32_t peer, int looks) {
    for (int i = 0; i < looks * 64; ++i)
      if (give_up(job_, waiter, peer, nullptr, 0)) return true;
    return false;
  }

  [[nodiscard]] Job job_of(uint32_t rank, uint32_t op, uint64_t count) const {
    Job job = job_;
    job.rank = rank;
    job.peer = 1 - rank;
    job.mark.op = op;
    job.mark.count = count;
    job.digest = digest_of(job.mark);
    return job;
  }

  std::vector<Control> controls_{3};
  Orders orders_{};
  Report report_{};
  Job job_{};
};

// A rank gives its data, ends and leaves, all between two looks of another one, which is at the end of its patience.
TEST_F(Waiting, ForARankThatIsGoneLooksOnceMore) {
  for (const Failure how : {Failure::kLeft, Failure::kLost}) {
    Waiter waiter;
    ASSERT_FALSE(gives_up(waiter, 1, 15));
    if (how == Failure::kLeft)
      controls_[0].left[1] = 1;
    else
      orders_ = {.stop = static_cast<uint64_t>(how), .peer = 1, .rank = 0};
    EXPECT_FALSE(gives_up(waiter, 1, 1)) << "it may have come";
    EXPECT_EQ(report_.state, 0u);
    EXPECT_TRUE(gives_up(waiter, 1, 1));
    EXPECT_EQ(report_.failure, static_cast<uint32_t>(how));
    EXPECT_EQ(report_.peer, 1u);
    controls_.assign(3, {});
    orders_ = {};
    report_ = {};
  }
}

// It had come; now another one is waited for, which is gone as well.
TEST_F(Waiting, ForEachRankThatIsGoneLooksOnceMore) {
  Waiter waiter;
  controls_[0].left[1] = controls_[0].left[2] = 1;
  EXPECT_FALSE(gives_up(waiter, 1, 16));
  EXPECT_FALSE(gives_up(waiter, 2, 1));
  EXPECT_TRUE(gives_up(waiter, 2, 1));
  EXPECT_EQ(report_.peer, 2u);
}

TEST_F(Waiting, EndsAtOnceWhenTheHostStopsIt) {
  Waiter waiter;
  orders_ = {.stop = static_cast<uint64_t>(Failure::kAborted), .peer = 0, .rank = 0};
  ASSERT_FALSE(gives_up(waiter, 1, 15));
  EXPECT_TRUE(gives_up(waiter, 1, 1));
  EXPECT_EQ(report_.failure, static_cast<uint32_t>(Failure::kAborted));
}

// A row's other block finds no room.
TEST_F(Waiting, ForAnotherBlockOfARowEnds) {
  Job job = job_;
  job.parts = 2;
  job.timeout_ns = 1'000'000;
  give_in_memory(job, row_blocks(job, 0), 0);
  bool failed = false;
  Stopped stopped;
  (void)take_in_memory(job, 0, failed, stopped);
  EXPECT_TRUE(failed);
  EXPECT_EQ(report_.state, 0u);
  report(job, {0, 2, 0}, stopped);
  EXPECT_EQ(report_.failure, static_cast<uint32_t>(Failure::kTimedOut));
}

// It stopped for a rank that is at another operation, and then its row's other block did not come either.
TEST_F(Waiting, EndsWithItsFirstReason) {
  Job job = job_of(0, TOWLINE_COLLECTIVE_ALL_REDUCE, 3);
  job.parts = 2;
  job.timeout_ns = 1'000'000;
  const Job theirs = job_of(1, TOWLINE_COLLECTIVE_ALL_REDUCE, 7);
  (void)begin_turn(theirs, 0, 1);
  const uint64_t signal = uint64_t{1} << 32 | theirs.digest;
  for (const bool by_data : {true, false}) {
    Stopped stopped{.peer = 1, .digest = by_data ? theirs.digest : 0};
    if (!by_data) controls_[0].signal[1][0] = signal;
    give_in_memory(job, row_blocks(job, 0), kSumFailed);
    bool failed = true;
    (void)take_in_memory(job, 0, failed, stopped);
    report(job, {0, 2, 1}, stopped);
    EXPECT_EQ(report_.failure, static_cast<uint32_t>(Failure::kMismatch));
    EXPECT_EQ(report_.peer, 1u);
    EXPECT_EQ(report_.theirs.count, 7u);
    controls_[0] = {};
    report_ = {};
  }
}

// An owner has come, but waits for a third rank before it can give its sum.
TEST_F(Waiting, ForASumNamesTheRankThatHasNotCome) {
  Job job = job_of(0, TOWLINE_COLLECTIVE_ALL_REDUCE, 3);
  controls_[0].signal[1][0] = uint64_t{1} << 32 | job.digest;
  report(job, {0, 1, 1}, {.peer = 1});
  EXPECT_EQ(report_.failure, static_cast<uint32_t>(Failure::kTimedOut));
  EXPECT_EQ(report_.peer, 2u);
}

// The others may wait for a rank that comes late, and what has stopped the first one is told at the kernel's end.
TEST_F(Waiting, EndsForAllThreadsOfARankWithOne) {
  const Job job = job_of(0, TOWLINE_COLLECTIVE_ALL_REDUCE, 3);
  const Job theirs = job_of(1, TOWLINE_COLLECTIVE_ALL_REDUCE, 7);
  (void)begin_turn(theirs, 0, 1);
  const uint64_t signal = uint64_t{1} << 32 | theirs.digest;
  Stopped first, second;
  const auto waits = [&](uint32_t peer, const uint64_t* word, Stopped& stopped) {
    Waiter waiter;
    for (int i = 0; i < 64; ++i)
      if (stops(job, waiter, peer, word, 1, stopped)) return false;
    return true;
  };
  EXPECT_TRUE(waits(2, nullptr, second));
  EXPECT_FALSE(waits(1, &signal, first));
  EXPECT_FALSE(waits(2, nullptr, second));
  const Turn turn{0, 1, 1};
  report(job, turn, second);
  EXPECT_EQ(report_.state, 0u);
  controls_[0].signal[1][0] = signal;
  report(job, turn, first);
  EXPECT_EQ(report_.failure, static_cast<uint32_t>(Failure::kMismatch));
  EXPECT_EQ(report_.peer, 1u);
}

// The sender has gone on since.
TEST_F(Waiting, AMessageThatDisagreesIsNamedAndNotTheOneAfterIt) {
  for (const uint64_t count : {1, 2}) run_send(job_of(1, TOWLINE_COLLECTIVE_SEND, count));
  run_receive(job_of(0, TOWLINE_COLLECTIVE_SEND, 3));
  EXPECT_EQ(report_.failure, static_cast<uint32_t>(Failure::kMismatch));
  EXPECT_EQ(report_.theirs.count, 1u);
}

TEST_F(Waiting, ACollectiveThatDisagreesIsNamedAndNotAMessageBesideIt) {
  Scratch scratch;
  const Job theirs = job_of(1, TOWLINE_COLLECTIVE_ALL_REDUCE, 7);
  (void)begin_turn(theirs, 0, 1);
  run_moving(
      [&] {
        Job job = job_of(1, TOWLINE_COLLECTIVE_SEND, 2);
        job.way = Way::kSend;
        return job;
      }(),
      scratch, 0, 1);
  disagree_with(job_of(0, TOWLINE_COLLECTIVE_ALL_REDUCE, 3), 1, theirs.digest);
  EXPECT_EQ(report_.failure, static_cast<uint32_t>(Failure::kMismatch));
  EXPECT_EQ(report_.theirs.op, TOWLINE_COLLECTIVE_ALL_REDUCE);
  EXPECT_EQ(report_.theirs.count, 7u);
}

// A peer that shows a digest and stops before its mark.
TEST_F(Waiting, ForAMarkEndsWithoutIt) {
  const Job theirs = job_of(1, TOWLINE_COLLECTIVE_ALL_REDUCE, 7);
  disagree_with(job_of(0, TOWLINE_COLLECTIVE_ALL_REDUCE, 3), 1, theirs.digest);
  EXPECT_EQ(report_.failure, static_cast<uint32_t>(Failure::kMismatch));
  EXPECT_EQ(report_.peer, 1u);
  EXPECT_EQ(text_of(report_.theirs), "another operation");
}

// The peer has gone on since: its mark is whole, but that of a later collective.
TEST_F(Waiting, ALaterCollectiveIsNotNamed) {
  const Job theirs = job_of(1, TOWLINE_COLLECTIVE_ALL_REDUCE, 7);
  Job later = job_of(1, TOWLINE_COLLECTIVE_ALL_REDUCE, 8);
  later.mark.number = 1;
  (void)begin_turn(later, 0, 1);
  disagree_with(job_of(0, TOWLINE_COLLECTIVE_ALL_REDUCE, 3), 1, theirs.digest);
  EXPECT_EQ(text_of(report_.theirs), "another operation");
}

// The same call, made once more: only its number differs.
TEST_F(Waiting, ALaterCollectiveThatWasCalledAlikeIsNotNamed) {
  const Job theirs = job_of(1, TOWLINE_COLLECTIVE_ALL_REDUCE, 7);
  Job later = theirs;
  later.mark.number = 1;
  (void)begin_turn(later, 0, 1);
  disagree_with(job_of(0, TOWLINE_COLLECTIVE_ALL_REDUCE, 3), 1, theirs.digest);
  EXPECT_EQ(text_of(report_.theirs), "another operation");
}

TEST_F(Waiting, ReadsAMarkAsItWasWritten) {
  const Mark mark = {
      .number = 1, .count = 2, .digest = 3, .tag = 4, .op = 5, .datatype = 6, .reduction = 7, .root = -8};
  uint64_t words[kMarkWords];
  store_mark(words, mark);
  EXPECT_EQ(memcmp(words, &mark, sizeof mark), 0);
  Mark read = {};
  load_mark(words, read);
  EXPECT_EQ(memcmp(&read, &mark, sizeof mark), 0);
}

}  // namespace
}  // namespace towline::collectives::gpu
