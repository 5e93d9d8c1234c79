#include "base/sync/spin.h"

#include <gtest/gtest.h>

namespace towline {
namespace {

TEST(SpinWaitTest, IsBounded) {
  SpinWait spin(10, 5);
  int turns = 0;
  while (spin.again()) ++turns;
  EXPECT_EQ(turns, 15);
  EXPECT_FALSE(spin.again());
  spin.reset();
  EXPECT_TRUE(spin.again());
}

}  // namespace
}  // namespace towline
