#include "base/copy/quicker_way.h"

#include <gtest/gtest.h>

namespace towline {
namespace {

// Does something so often; how often by the second way.
int seconds(QuickerWay<1, 8>& way, int count, uint64_t first_cost, uint64_t second_cost) {
  int seconds = 0;
  for (int i = 0; i < count; ++i) {
    seconds += way.second() ? 1 : 0;
    way.took(way.second() ? second_cost : first_cost);
  }
  return seconds;
}

TEST(QuickerWay, BeginsWithTheSecond) {
  QuickerWay<1, 8> way;
  EXPECT_EQ(seconds(way, 9, 1, 100), 9);
}

TEST(QuickerWay, TheQuickerOneIsTakenAlmostAlways) {
  QuickerWay<1, 8> first;
  (void)seconds(first, 50, 100, 200);
  EXPECT_LT(seconds(first, 2000, 100, 200), 200);
  QuickerWay<1, 8> second;
  (void)seconds(second, 50, 200, 100);
  EXPECT_GT(seconds(second, 2000, 200, 100), 1800);
}

TEST(QuickerWay, WhatIsHardlyQuickerDoesNotTakeOver) {
  QuickerWay<1, 8> way;
  EXPECT_GT(seconds(way, 2000, 97, 100), 1800);
}

TEST(QuickerWay, AChangeIsNoticed) {
  QuickerWay<1, 8> way;
  (void)seconds(way, 1000, 200, 100);
  (void)seconds(way, 2000, 200, 400);
  EXPECT_LT(seconds(way, 1000, 200, 400), 150);
}

}  // namespace
}  // namespace towline
