#include "transports/cuda/way_choice.h"

#include <gtest/gtest.h>

namespace towline::cuda {
namespace {

constexpr uint64_t kBytes = 1 << 20;

// Posts again and again; the ways take so long.
uint32_t count_direct(WayChoice& choice, uint32_t posts, uint64_t direct_ns, uint64_t gathered_ns) {
  uint32_t direct = 0;
  for (uint32_t i = 0; i < posts; ++i) {
    const HostWay way = choice.next();
    direct += way == HostWay::kDirect ? 1 : 0;
    choice.ended(way, kBytes, way == HostWay::kDirect ? direct_ns : gathered_ns);
  }
  return direct;
}

TEST(WayChoiceTest, TheWayThatDisturbsNobodyIsTakenAsLongAsItIsAboutAsFast) {
  WayChoice choice;
  EXPECT_EQ(count_direct(choice, 1000, 100, 105), WayChoice::kTries + 1000 / WayChoice::kAgain);
}

TEST(WayChoiceTest, AWayThatWaitsForTheGpusOtherWorkIsLeft) {
  WayChoice choice;
  EXPECT_GE(count_direct(choice, 1000, 100, 400), 1000 - WayChoice::kTries - 1000 / WayChoice::kAgain);
}

TEST(WayChoiceTest, TheFirstTryOfAWayIsForgotten) {
  WayChoice choice;
  (void)count_direct(choice, 1, 100, 4000);
  EXPECT_EQ(count_direct(choice, 20, 100, 90), WayChoice::kTries);
}

TEST(WayChoiceTest, AChangeIsNoticed) {
  WayChoice choice;
  (void)count_direct(choice, 1000, 100, 400);
  (void)count_direct(choice, 16 * WayChoice::kAgain, 100, 100);
  EXPECT_EQ(choice.better(), HostWay::kGathered);
  (void)count_direct(choice, 200, 100, 400);
  EXPECT_EQ(choice.better(), HostWay::kDirect);
}

}  // namespace
}  // namespace towline::cuda
