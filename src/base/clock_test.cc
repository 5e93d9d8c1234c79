#include "base/clock.h"

#include <gtest/gtest.h>

namespace towline {
namespace {

TEST(ClockTest, SystemClockDoesNotGoBackwards) {
  const SystemClock clock;
  uint64_t last = clock.now_ns();
  EXPECT_GT(last, 0u);
  for (int i = 0; i < 1000; ++i) {
    const uint64_t now = clock.now_ns();
    ASSERT_GE(now, last);
    last = now;
  }
}

TEST(ClockTest, VirtualClockMovesOnlyForwardsAndOnlyWhenTold) {
  VirtualClock clock(100);
  EXPECT_EQ(clock.now_ns(), 100u);
  clock.advance(5);
  EXPECT_EQ(clock.now_ns(), 105u);
  clock.set(50);
  EXPECT_EQ(clock.now_ns(), 105u);
  clock.set(500);
  EXPECT_EQ(clock.now_ns(), 500u);
}

TEST(DeadlineTest, ATimeoutTooLongToRepresentNeverComes) {
  EXPECT_TRUE(Deadline::after(1, kNoDeadline).is_never());
  EXPECT_TRUE(Deadline::after(kNoDeadline - 5, 6).is_never());
  EXPECT_TRUE(Deadline::after(0, kNoDeadline).is_never());
  EXPECT_EQ(Deadline::after(1000, 24).ns(), 1024u);
  EXPECT_FALSE(Deadline::never().passed(kNoDeadline));
}

TEST(DeadlineTest, PassesExactlyAtItsTime) {
  const VirtualClock clock(1000);
  const Deadline deadline = Deadline::after(clock, 10);
  EXPECT_FALSE(deadline.passed(1009));
  EXPECT_TRUE(deadline.passed(1010));
  EXPECT_EQ(deadline.remaining_ns(1003), 7u);
  EXPECT_EQ(deadline.remaining_ns(2000), 0u);
  EXPECT_EQ(Deadline::never().remaining_ns(2000), kNoDeadline);
  EXPECT_LT(deadline, Deadline::never());
}

}  // namespace
}  // namespace towline
