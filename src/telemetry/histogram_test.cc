#include "telemetry/histogram.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "base/random.h"

namespace towline {
namespace {

TEST(HistogramTest, BucketsAreContiguousAndHoldTheirValues) {
  EXPECT_EQ(latency_bucket(0), 0u);
  for (std::size_t bucket = 0; bucket + 1 < kLatencyBuckets; ++bucket) {
    const uint64_t start = latency_bucket_start_ns(bucket);
    const uint64_t next = latency_bucket_start_ns(bucket + 1);
    ASSERT_LT(start, next);
    ASSERT_EQ(latency_bucket(start), bucket);
    ASSERT_EQ(latency_bucket(next - 1), bucket);
    ASSERT_EQ(latency_bucket(next), bucket + 1);
    if (start >= 4) {
      ASSERT_LE(4 * (next - start), start);
    }
  }
  EXPECT_EQ(latency_bucket_start_ns(kLatencyBuckets - 1), uint64_t{1} << 40);
  EXPECT_EQ(latency_bucket(UINT64_MAX), kLatencyBuckets - 1);
}

TEST(HistogramTest, QuantilesAreWithinAnEighthOfTheExactOnes) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    Random random(seed);
    std::array<uint64_t, kLatencyBuckets> counts{};
    std::vector<uint64_t> values;
    for (int i = 0; i < 20000; ++i) {
      const double spread = std::exp2(5 + random.uniform() * 28);
      values.push_back(static_cast<uint64_t>(spread));
      ++counts[latency_bucket(values.back())];
    }
    std::sort(values.begin(), values.end());
    for (const double quantile : {0.01, 0.5, 0.9, 0.99, 0.999}) {
      const auto rank = static_cast<std::size_t>(std::ceil(quantile * 20000));
      const auto exact = static_cast<double>(values[rank - 1]);
      const auto estimate = static_cast<double>(latency_quantile_ns(counts, quantile, values.back()));
      EXPECT_NEAR(estimate, exact, exact / 8 + 1) << quantile;
    }
  }
}

TEST(HistogramTest, EmptyExtremeAndOverflowingCounts) {
  std::array<uint64_t, kLatencyBuckets> counts{};
  EXPECT_EQ(latency_quantile_ns(counts, 0.5, 0), 0u);
  counts[latency_bucket(1000)] = 1;
  EXPECT_EQ(latency_quantile_ns(counts, 0.0, 900), 900u);  // never above the maximum
  counts[kLatencyBuckets - 1] = 1;
  EXPECT_EQ(latency_quantile_ns(counts, 1.0, uint64_t{1} << 50), uint64_t{1} << 50);
  counts.fill(UINT64_MAX / kLatencyBuckets);  // as a hostile file may hold
  latency_quantile_ns(counts, 1.0, UINT64_MAX);
  counts.fill(UINT64_MAX);
  latency_quantile_ns(counts, 0.99, UINT64_MAX);
}

}  // namespace
}  // namespace towline
