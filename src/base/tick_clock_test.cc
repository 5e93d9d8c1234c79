#include "base/tick_clock.h"

#include <gtest/gtest.h>

#include <vector>

namespace towline {
namespace {

class TickClockTest : public testing::TestWithParam<bool> {};

// Both ways of a clock: by the counter, if it is steady here, and by the clock itself.
INSTANTIATE_TEST_SUITE_P(, TickClockTest, testing::Values(ticks_are_steady(), false));

TEST_P(TickClockTest, TimesLieBetweenReadingsOfTheClockAroundThem) {
  const TickClock clock(GetParam());
  struct Reading {
    uint64_t before;
    uint64_t when;
    uint64_t after;
  };
  std::vector<Reading> readings;
  const uint64_t began = monotonic_now_ns();
  while (monotonic_now_ns() - began < 20 * kMillisecondNs) {
    const uint64_t before = monotonic_now_ns();
    const uint64_t when = clock.now();
    readings.push_back({before, when, monotonic_now_ns()});
  }
  // The rate is known as exactly as both ends: a thread may be stopped between the two readings of an end.
  constexpr uint64_t kExactNs = 100 * kMicrosecondNs;
  const TickClock::Scale scale = clock.scale();
  uint64_t wrong = 0;
  for (const Reading& one : readings) {
    ASSERT_NE(one.when, 0u);
    const uint64_t ns = scale.to_ns(one.when);
    wrong += ns + kExactNs < one.before || ns > one.after + kExactNs ? 1 : 0;
  }
  EXPECT_EQ(wrong, 0u) << "of " << readings.size();
}

TEST_P(TickClockTest, NeverGoesBackOnOneThread) {
  const TickClock clock(GetParam());
  uint64_t last = 0;
  for (int i = 0; i < 1000; ++i) {
    const uint64_t now = clock.now();
    ASSERT_GE(now, last);
    last = now;
  }
}

}  // namespace
}  // namespace towline
