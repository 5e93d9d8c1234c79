#include "telemetry/histogram.h"

#include <algorithm>
#include <cmath>

namespace towline {

uint64_t latency_quantile_ns(std::span<const uint64_t> counts, double quantile, uint64_t max_ns) noexcept {
  uint64_t total = 0;
  for (const uint64_t count : counts) total += count;
  if (total == 0) return 0;
  const double wanted = std::ceil(std::clamp(quantile, 0.0, 1.0) * static_cast<double>(total));
  uint64_t rank = wanted >= static_cast<double>(total) ? total : static_cast<uint64_t>(wanted);
  rank = std::max<uint64_t>(rank, 1);
  uint64_t below = 0;
  for (std::size_t bucket = 0; bucket < counts.size(); ++bucket) {
    below += counts[bucket];
    if (below < rank) continue;
    if (bucket + 1 >= kLatencyBuckets) return max_ns;
    const uint64_t start = latency_bucket_start_ns(bucket);
    const uint64_t width = latency_bucket_start_ns(bucket + 1) - start;
    return std::min(start + width / 2, max_ns);
  }
  return max_ns;
}

}  // namespace towline
