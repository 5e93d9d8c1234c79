#include "agent/hand_over_choice.h"

#include <gtest/gtest.h>

namespace towline {
namespace {

// Chunks take so long by either way; how many of the last `count` were handed over.
struct Passage {
  HandOverChoice choice;
  uint64_t now_ns = 0;

  int handed(int count, uint64_t handed_ns, uint64_t kept_ns) {
    int handed = 0;
    choice.begin(now_ns);
    for (int i = 0; i < count; ++i) {
      handed += choice.hand_over() ? 1 : 0;
      now_ns += choice.hand_over() ? handed_ns : kept_ns;
      choice.arrived(now_ns);
    }
    return handed;
  }
};

TEST(HandOverChoice, TheFirstChunksAreHandedOver) {
  Passage run;
  EXPECT_EQ(run.handed(16, 100, 200), 16);
}

TEST(HandOverChoice, TheQuickerWayTakesOverAndTheOtherIsLookedAtAgain) {
  Passage run;
  (void)run.handed(100, 100, 200);
  const int quicker = run.handed(2000, 100, 200);
  EXPECT_GT(quicker, 1700);
  EXPECT_LT(quicker, 2000);

  Passage other;
  (void)other.handed(100, 200, 100);
  const int slower = other.handed(2000, 200, 100);
  EXPECT_LT(slower, 300);
  EXPECT_GT(slower, 0);
}

TEST(HandOverChoice, AChangeOfFortuneIsNoticed) {
  Passage run;
  (void)run.handed(1000, 100, 200);
  (void)run.handed(1000, 400, 200);
  EXPECT_LT(run.handed(1000, 400, 200), 200);
}

TEST(HandOverChoice, AWayThatIsSlowAtFirstIsJudgedByWhatItComesTo) {
  Passage run;
  int handed = 0;
  int in_a_row = 0;
  for (int i = 0; i < 4000; ++i) {
    in_a_row = run.choice.hand_over() ? in_a_row + 1 : 0;
    handed += run.handed(1, in_a_row > 40 ? 100 : 1000, 200);
  }
  EXPECT_GT(handed, 3500);
}

TEST(HandOverChoice, TimeBetweenPostsCountsForNobody) {
  Passage run;
  for (int post = 0; post < 200; ++post) {
    (void)run.handed(4, 100, 200);
    run.now_ns += 1'000'000;
  }
  int handed = 0;
  for (int post = 0; post < 500; ++post) {
    handed += run.handed(4, 100, 200);
    run.now_ns += 1'000'000;
  }
  EXPECT_GT(handed, 1700);
}

}  // namespace
}  // namespace towline
