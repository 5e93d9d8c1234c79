// Seeded numbers that are the same everywhere: for stamps, orders and generated traces.
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>
#include <utility>

namespace tool {

// splitmix64's finisher: every bit of the input changes every bit of the output.
[[nodiscard]] constexpr uint64_t mix(uint64_t value) {
  value += 0x9E3779B97F4A7C15;
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EB;
  return value ^ (value >> 31);
}

template <class... More>
[[nodiscard]] constexpr uint64_t mix(uint64_t first, uint64_t second, More... more) {
  return mix(mix(first) ^ second, more...);
}

__extension__ using Wide = unsigned __int128;

class Random {
 public:
  explicit Random(uint64_t seed) : state_(mix(seed)) {}

  uint64_t next() { return mix(state_ += 0x9E3779B97F4A7C15); }
  // 0 to bound - 1.
  uint64_t below(uint64_t bound) { return static_cast<uint64_t>((static_cast<Wide>(next()) * bound) >> 64); }
  // From 0, below 1.
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }
  double exponential(double mean) { return -mean * std::log1p(-uniform()); }
  double normal() {
    const double radius = std::sqrt(-2 * std::log1p(-uniform()));
    return radius * std::cos(2 * std::numbers::pi * uniform());
  }
  // By median and mean.
  double lognormal(double median, double mean) {
    return median * std::exp(std::sqrt(2 * std::log(mean / median)) * normal());
  }
  template <class Values>
  void shuffle(Values& values) {
    for (uint64_t left = values.size(); left > 1; --left) std::swap(values[left - 1], values[below(left)]);
  }

 private:
  uint64_t state_;
};

}  // namespace tool
