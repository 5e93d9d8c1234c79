#include "base/random.h"

#include <gtest/gtest.h>

#include <array>
#include <set>

namespace towline {
namespace {

// From the reference implementation, seed 1234567.
TEST(RandomTest, SplitMixMatchesItsReference) {
  SplitMix64 generator(1234567);
  EXPECT_EQ(generator.next(), 6457827717110365317ULL);
  EXPECT_EQ(generator.next(), 3203168211198807973ULL);
  EXPECT_EQ(generator.next(), 9817491932198370423ULL);
}

TEST(RandomTest, TheSameSeedGivesTheSameNumbers) {
  Random a(42);
  Random b(42);
  Random c(43);
  std::set<uint64_t> distinct;
  for (int i = 0; i < 1000; ++i) {
    const uint64_t value = a.next();
    EXPECT_EQ(value, b.next());
    distinct.insert(value);
    distinct.insert(c.next());
  }
  EXPECT_EQ(distinct.size(), 2000u);
}

TEST(RandomTest, BoundsAreKeptAndAllReached) {
  Random random(7);
  std::array<int, 5> seen{};
  for (int i = 0; i < 10000; ++i) {
    const uint64_t value = random.between(10, 14);
    ASSERT_GE(value, 10u);
    ASSERT_LE(value, 14u);
    ++seen[value - 10];
    const double fraction = random.uniform();
    ASSERT_GE(fraction, 0.0);
    ASSERT_LT(fraction, 1.0);
  }
  for (const int count : seen) EXPECT_NEAR(count, 2000, 250);
  EXPECT_EQ(random.below(0), 0u);
  EXPECT_EQ(random.below(1), 0u);
  EXPECT_EQ(random.between(9, 9), 9u);
  random.between(0, UINT64_MAX);
  EXPECT_FALSE(random.chance(0.0));
  EXPECT_TRUE(random.chance(1.0));
}

}  // namespace
}  // namespace towline
