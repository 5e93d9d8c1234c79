#include "base/check.h"

#include <gtest/gtest.h>

namespace {

TEST(CheckTest, AHoldingCheckDoesNotEvaluateItsMessage) {
  int evaluated = 0;
  TOWLINE_CHECK(evaluated == 0, "{}", ++evaluated);
  EXPECT_EQ(evaluated, 0);
}

TEST(CheckDeathTest, AFailedCheckNamesConditionAndMessageAndAborts) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(TOWLINE_CHECK(1 + 1 == 3, "sum of {} and {}", 1, 1),
               "check_test.cc:.*1 \\+ 1 == 3: sum of 1 and 1");
  EXPECT_DEATH(TOWLINE_CHECK(false), "check failed: false");
}

}  // namespace
