#include "agent/split_choice.h"

#include <gtest/gtest.h>

#include "towline/towline.h"

namespace towline {
namespace {

constexpr uint64_t kBytes = 8 << 20;

// Posts one after the other, and says how many of them were split.
int posts(SplitChoice& choice, uint64_t& now_ns, int count, uint64_t whole_ns, uint64_t split_ns) {
  int split = 0;
  for (int i = 0; i < count; ++i) {
    const bool splits = choice.split();
    const uint64_t began_ns = now_ns;
    now_ns += splits ? split_ns : whole_ns;
    choice.ended(splits, began_ns, now_ns, kBytes);
    split += splits ? 1 : 0;
  }
  return split;
}

TEST(SplitChoice, BeginsWholeAndTriesBoth) {
  SplitChoice choice;
  uint64_t now_ns = kSecondNs;
  EXPECT_FALSE(choice.split());
  const int split = posts(choice, now_ns, 20, 1000, 1000);
  EXPECT_GT(split, 0);
  EXPECT_LT(split, 20);
}

TEST(SplitChoice, TheQuickerWayIsTakenAlmostAlways) {
  SplitChoice split_is_quicker;
  SplitChoice whole_is_quicker;
  uint64_t now_ns = kSecondNs;
  EXPECT_GT(posts(split_is_quicker, now_ns, 1000, 4'000'000, 1'000'000), 900);
  EXPECT_LT(posts(whole_is_quicker, now_ns, 1000, 1'000'000, 4'000'000), 50);
}

// Four workers that move three times what one does, by posts of 64 MiB: the time that trying costs.
TEST(SplitChoice, TryingTheSlowerWayCostsLittle) {
  constexpr uint64_t kWholeNs = 25'800'000;
  constexpr uint64_t kSplitNs = 8'600'000;
  SplitChoice choice;
  uint64_t now_ns = kSecondNs;
  EXPECT_EQ(100 - posts(choice, now_ns, 100, kWholeNs, kSplitNs), 5) << "whole posts of the first second";
  const uint64_t began_ns = now_ns;
  const int split = posts(choice, now_ns, 4000, kWholeNs, kSplitNs);
  EXPECT_LT(now_ns - began_ns, 4000 * kSplitNs * 1015 / 1000) << 4000 - split << " posts went whole";
}

TEST(SplitChoice, AWayThatIsSlowIsGivenUpSoon) {
  SplitChoice choice;
  uint64_t now_ns = kSecondNs;
  EXPECT_EQ(posts(choice, now_ns, 20, 1'000'000, 4'000'000), 4);
}

TEST(SplitChoice, ALookAtWholePostsTakesTwoOfThem) {
  SplitChoice choice;
  uint64_t now_ns = kSecondNs;
  (void)posts(choice, now_ns, 13, 3'000'000, 1'000'000);
  EXPECT_EQ(200 - posts(choice, now_ns, 200, 3'000'000, 1'000'000), 2);
}

TEST(SplitChoice, OneSlowPostDoesNotEndALook) {
  SplitChoice choice;
  uint64_t now_ns = kSecondNs;
  (void)posts(choice, now_ns, 5, 2'000'000, 0);
  ASSERT_TRUE(choice.split());
  for (const uint64_t each_ns : {9, 9, 1, 9, 1, 1, 1, 1}) {
    EXPECT_TRUE(choice.split());
    EXPECT_EQ(posts(choice, now_ns, 1, 0, each_ns * 1'000'000), 1);
  }
  EXPECT_TRUE(choice.split());
}

TEST(SplitChoice, AChangeIsNoticed) {
  SplitChoice choice;
  uint64_t now_ns = kSecondNs;
  (void)posts(choice, now_ns, 500, 1'000'000, 4'000'000);
  (void)posts(choice, now_ns, 500, 4'000'000, 1'000'000);
  EXPECT_GT(posts(choice, now_ns, 100, 4'000'000, 1'000'000), 80);
}

TEST(SplitChoice, PostsThatAreInFlightAtOnceAreJudgedByTheirRate) {
  // Four at a time: each takes four times as long as it would alone.
  SplitChoice choice;
  uint64_t now_ns = kSecondNs;
  int split = 0;
  for (int i = 0; i < 1000; ++i) {
    const bool splits = choice.split();
    const uint64_t each_ns = splits ? 1'000'000 : 2'000'000;
    now_ns += each_ns;
    choice.ended(splits, now_ns - 4 * each_ns, now_ns, kBytes);
    split += splits ? 1 : 0;
  }
  EXPECT_GT(split, 900);
}

TEST(SplitChoice, TimesOfTheOtherWayDoNotCount) {
  SplitChoice choice;
  for (uint64_t i = 1; i < 100; ++i) choice.ended(true, i * kSecondNs, i * kSecondNs + 1, kBytes);
  EXPECT_FALSE(choice.split());  // whole posts were not measured yet
}

TEST(SplitChoices, AreOfADirectionAndASizeClass) {
  SplitChoices choices;
  constexpr uint64_t kMiB = 1 << 20;
  EXPECT_EQ(&choices.of(TOWLINE_READ, 4 * kMiB), &choices.of(TOWLINE_READ, 15 * kMiB));
  EXPECT_NE(&choices.of(TOWLINE_READ, 4 * kMiB), &choices.of(TOWLINE_WRITE, 4 * kMiB));
  EXPECT_NE(&choices.of(TOWLINE_READ, 4 * kMiB), &choices.of(TOWLINE_READ, 16 * kMiB));
  EXPECT_NE(&choices.of(TOWLINE_READ, 16 * kMiB), &choices.of(TOWLINE_READ, 64 * kMiB));
  EXPECT_EQ(&choices.of(TOWLINE_READ, 64 * kMiB), &choices.of(TOWLINE_READ, uint64_t{1} << 50));
}

TEST(SplitChoices, AskForConnectionsOnceASecond) {
  SplitChoices choices;
  EXPECT_TRUE(choices.may_connect(kSecondNs));
  EXPECT_FALSE(choices.may_connect(2 * kSecondNs - 1));
  EXPECT_TRUE(choices.may_connect(2 * kSecondNs));
}

}  // namespace
}  // namespace towline
