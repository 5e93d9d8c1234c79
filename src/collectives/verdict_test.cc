#include "collectives/verdict.h"

#include <gtest/gtest.h>

namespace towline::collectives {
namespace {

Breakage late(int rank, std::vector<int> awaited) {
  return {Status::kTimedOut, "rank " + std::to_string(rank) + " timed out", std::move(awaited)};
}

TEST(Verdict, NamesTheRankThatMakesNoClaim) {
  Verdict verdict(4);
  EXPECT_TRUE(verdict.take(1, late(1, {0}), 0)) << "the first claim asks the others";
  EXPECT_FALSE(verdict.take(0, late(0, {2}), 10));
  EXPECT_TRUE(verdict.waits());
  EXPECT_FALSE(verdict.take(2, late(2, {1, 3}), 20)) << "only rank 3 is left";
  ASSERT_TRUE(verdict.settled());
  EXPECT_EQ(verdict.reason().status, Status::kTimedOut);
  EXPECT_EQ(verdict.reason().text, "rank 2 timed out: no sign of rank 3");
  EXPECT_TRUE(verdict.reason().awaited.empty());
}

TEST(Verdict, WaitsForClaimsForItsTimeOnly) {
  Verdict verdict(4);
  EXPECT_TRUE(verdict.take(0, late(0, {2, 3}), 100));
  verdict.look(99 + Verdict::kClaimNs);
  EXPECT_FALSE(verdict.settled());
  EXPECT_EQ(verdict.due_ns(), 100 + Verdict::kClaimNs);
  verdict.look(100 + Verdict::kClaimNs);
  ASSERT_TRUE(verdict.settled());
  EXPECT_EQ(verdict.reason().text, "rank 0 timed out: no sign of rank 2, 3");
}

TEST(Verdict, RanksThatWaitForOneAnotherGetTheFirstClaim) {
  Verdict verdict(2);
  EXPECT_FALSE(verdict.take(0, late(0, {1}), 0)) << "nobody else could be named";
  EXPECT_EQ(verdict.reason().text, "rank 0 timed out: no sign of rank 1");
  Verdict ring(3);
  EXPECT_TRUE(ring.take(1, late(1, {2}), 0));
  EXPECT_FALSE(ring.take(2, late(2, {1}), 0));
  EXPECT_TRUE(ring.waits()) << "rank 0 may still say whom it waits for";
  EXPECT_FALSE(ring.take(0, late(0, {1}), 0));
  EXPECT_EQ(ring.reason().text, "rank 1 timed out: no sign of rank 2");
}

TEST(Verdict, AnyOtherReasonAppliesAtOnce) {
  Verdict verdict(4);
  EXPECT_TRUE(verdict.take(0, late(0, {1}), 0));
  EXPECT_FALSE(verdict.take(2, {Status::kCancelled, "rank 2 aborted"}, 1));
  ASSERT_TRUE(verdict.settled());
  EXPECT_EQ(verdict.reason().text, "rank 2 aborted");
  EXPECT_FALSE(verdict.take(3, late(3, {1}), 2));
  EXPECT_EQ(verdict.reason().text, "rank 2 aborted") << "the first one applies";
}

// Claims come from other processes.
TEST(Verdict, TakesClaimsThatNameNoRankOfTheCommunicator) {
  Verdict verdict(3);
  EXPECT_TRUE(verdict.take(1, late(1, {-1, 77}), 0));
  verdict.look(Verdict::kClaimNs);
  ASSERT_TRUE(verdict.settled());
  EXPECT_EQ(verdict.reason().text, "rank 1 timed out: no sign of rank -1, 77");
}

}  // namespace
}  // namespace towline::collectives
