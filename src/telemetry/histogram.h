// The log-linear histogram of latencies: four buckets per power of two up to 2^40 ns (18 minutes), so that a
// value is known to within a quarter of itself, and to within an eighth when the bucket's middle stands for
// it.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

namespace towline {

inline constexpr uint32_t kLatencyLimitBits = 40;

// 0..3 have a bucket each, then four for every power of two from 4 on; the last takes all from 2^40.
inline constexpr std::size_t kLatencyBuckets = 4 + 4 * (kLatencyLimitBits - 2) + 1;

constexpr std::size_t latency_bucket(uint64_t ns) noexcept {
  if (ns < 4) return static_cast<std::size_t>(ns);
  if (ns >> kLatencyLimitBits != 0) return kLatencyBuckets - 1;
  const auto exponent = static_cast<uint32_t>(std::bit_width(ns)) - 1;  // 2..39
  return 4 * (exponent - 1) + static_cast<std::size_t>((ns >> (exponent - 2)) & 3);
}

// The smallest value in a bucket.
constexpr uint64_t latency_bucket_start_ns(std::size_t bucket) noexcept {
  if (bucket < 4) return bucket;
  const uint64_t exponent = bucket / 4 + 1;
  return (4 + (bucket & 3)) << (exponent - 2);
}

// The value below which `quantile` (0..1) of the counts lie, as the middle of its bucket and never above
// max_ns; 0 when there are none.
uint64_t latency_quantile_ns(std::span<const uint64_t> counts, double quantile, uint64_t max_ns) noexcept;

}  // namespace towline
