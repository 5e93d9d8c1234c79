// Measured values and their statistics.
#pragma once

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <vector>

namespace tool {

// The most samples that a benchmark keeps of a run.
inline constexpr size_t kMostSamples = 1 << 20;

class Samples {
 public:
  Samples() = default;
  explicit Samples(std::vector<double> values) : values_(std::move(values)) {}

  void reserve(size_t count) { values_.reserve(count); }
  void add(double value) { values_.push_back(value); }
  void add(const Samples& other) {
    values_.insert(values_.end(), other.values_.begin(), other.values_.end());
  }

  [[nodiscard]] size_t size() const { return values_.size(); }
  [[nodiscard]] const std::vector<double>& values() const { return values_; }
  [[nodiscard]] double sum() const { return std::accumulate(values_.begin(), values_.end(), 0.0); }

  // The smallest value that `share` (0 to 1) of all values do not exceed; 0 without values.
  [[nodiscard]] double quantile(double share) const {
    if (values_.empty()) return 0;
    std::vector<double> sorted = values_;
    const auto rank = static_cast<size_t>(share * static_cast<double>(sorted.size()));
    const auto at = sorted.begin() + static_cast<ptrdiff_t>(std::min(rank, sorted.size() - 1));
    std::nth_element(sorted.begin(), at, sorted.end());
    return *at;
  }
  [[nodiscard]] double median() const { return quantile(0.5); }
  [[nodiscard]] double max() const { return quantile(1); }

 private:
  std::vector<double> values_;
};

}  // namespace tool
