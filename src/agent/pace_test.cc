// A limit holds within 10 % in every 10 ms.
#include "agent/pace.h"

#include <gtest/gtest.h>

#include <deque>

namespace towline {
namespace {

constexpr uint64_t kWindowNs = 10 * kMillisecondNs;

// Takes slices for `for_ns`, looking every `step_ns`; returns the most and the least that begins in a window.
struct Extremes {
  uint64_t most = 0;
  uint64_t least = UINT64_MAX;
};
Extremes run(Pace& pace, uint64_t for_ns, uint64_t step_ns, uint64_t start_ns) {
  struct Taken {
    uint64_t at_ns;
    uint64_t bytes;
  };
  std::deque<Taken> window;
  uint64_t in_window = 0;
  Extremes extremes;
  for (uint64_t now = start_ns; now < start_ns + for_ns; now += step_ns) {
    while (pace.opens_ns() <= now) {
      window.push_back({now, pace.slice_bytes()});
      in_window += pace.slice_bytes();
      pace.charge(pace.slice_bytes(), now);
    }
    while (!window.empty() && window.front().at_ns + kWindowNs <= now) {
      in_window -= window.front().bytes;
      window.pop_front();
    }
    extremes.most = std::max(extremes.most, in_window);
    if (now >= start_ns + kWindowNs) extremes.least = std::min(extremes.least, in_window);
  }
  return extremes;
}

TEST(PaceTest, EveryWindowHasTheRateWithinATenth) {
  for (const uint64_t rate : {50'000'000ull, 1'000'000'000ull, 12'500'000'000ull, 100'000'000'000ull}) {
    for (const uint64_t step_ns : {1000ull, 37'000ull, 250'000ull, 400'000ull}) {
      Pace pace;
      (void)pace.set(rate);
      const Extremes got = run(pace, 200 * kMillisecondNs, step_ns, 5 * kSecondNs);
      const double wanted = static_cast<double>(rate) / 100;
      ASSERT_NE(got.least, UINT64_MAX);
      EXPECT_LE(static_cast<double>(got.most), 1.1 * wanted) << rate << " looked at every " << step_ns;
      EXPECT_GE(static_cast<double>(got.least), 0.9 * wanted) << rate << " looked at every " << step_ns;
    }
  }
}

TEST(PaceTest, WhatWasNotUsedIsNotSavedUp) {
  Pace pace;
  (void)pace.set(1'000'000'000);
  (void)run(pace, 20 * kMillisecondNs, 10'000, kSecondNs);
  const Extremes after_a_rest = run(pace, 50 * kMillisecondNs, 10'000, 100 * kSecondNs);
  EXPECT_LE(after_a_rest.most, 11'000'000u);
}

TEST(PaceTest, WithoutALimitAllMayBegin) {
  Pace pace;
  pace.charge(1ull << 40, 1);
  EXPECT_EQ(pace.opens_ns(), 0u);
  EXPECT_EQ(pace.slice_bytes(), UINT64_MAX);
  (void)pace.set(1000);
  pace.charge(1 << 20, kSecondNs);
  EXPECT_GT(pace.opens_ns(), kSecondNs);
  EXPECT_EQ(pace.set(0), 1000u);
  EXPECT_EQ(pace.opens_ns(), 0u);
}

TEST(PaceTest, LimitsAreCounted) {
  Limits limits;
  Pace peer;
  EXPECT_FALSE(limits.any());
  EXPECT_TRUE(limits.set(limits.all, 5));
  EXPECT_FALSE(limits.set(peer, 7)) << "not the first";
  EXPECT_FALSE(limits.set(peer, 8));
  (void)limits.set(limits.all, 0);
  EXPECT_TRUE(limits.any());
  (void)limits.set(peer, 0);
  EXPECT_FALSE(limits.any());
}

}  // namespace
}  // namespace towline
