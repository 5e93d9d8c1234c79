// Medians and their spread.
#pragma once

#include <algorithm>
#include <vector>

namespace bench {

struct Spread {
  double median = 0;
  double min = 0;
  double max = 0;
};

inline Spread spread_of(std::vector<double> samples) {
  if (samples.empty()) return {};
  std::sort(samples.begin(), samples.end());
  const std::size_t n = samples.size();
  return {(samples[(n - 1) / 2] + samples[n / 2]) / 2, samples.front(), samples.back()};
}

// The value that `share` (0 to 1) of the samples do not exceed.
inline double percentile(std::vector<double> samples, double share) {
  if (samples.empty()) return 0;
  std::sort(samples.begin(), samples.end());
  return samples[std::min(samples.size() - 1,
                          static_cast<std::size_t>(share * static_cast<double>(samples.size())))];
}

}  // namespace bench
