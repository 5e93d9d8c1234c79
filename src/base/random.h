// Seeded generators for simulations and tests: the same seed gives the same numbers on every machine.
// Not for secrets; identities come from id.h.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

namespace towline {

// SplitMix64 (Steele, Lea, Flood 2014). One word of state; good for seeding others.
class SplitMix64 {
 public:
  explicit constexpr SplitMix64(uint64_t seed) noexcept : state_(seed) {}

  constexpr uint64_t next() noexcept {
    uint64_t mixed = (state_ += 0x9e3779b97f4a7c15ULL);
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9ULL;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebULL;
    return mixed ^ (mixed >> 31);
  }

 private:
  uint64_t state_;
};

// xoshiro256** (Blackman, Vigna 2018). Also a standard uniform random bit generator.
class Random {
 public:
  using result_type = uint64_t;

  explicit constexpr Random(uint64_t seed) noexcept {
    SplitMix64 seeder(seed);
    for (uint64_t& word : state_) word = seeder.next();
  }

  constexpr uint64_t next() noexcept {
    const uint64_t result = std::rotl(state_[1] * 5, 7) * 9;
    const uint64_t shifted = state_[1] << 17;
    state_[2] ^= state_[0];
    state_[3] ^= state_[1];
    state_[1] ^= state_[2];
    state_[0] ^= state_[3];
    state_[2] ^= shifted;
    state_[3] = std::rotl(state_[3], 45);
    return result;
  }

  // Uniform in [0, bound), without bias. 0 for bound 0.
  constexpr uint64_t below(uint64_t bound) noexcept {
    if (bound == 0) return 0;
    const uint64_t rejected = (0 - bound) % bound;  // 2^64 mod bound
    uint64_t value = next();
    while (value < rejected) value = next();
    return value % bound;
  }

  // Uniform in [low, high], both included; low <= high.
  constexpr uint64_t between(uint64_t low, uint64_t high) noexcept {
    const uint64_t width = high - low;
    return width == std::numeric_limits<uint64_t>::max() ? next() : low + below(width + 1);
  }

  // Uniform in [0, 1).
  constexpr double uniform() noexcept { return static_cast<double>(next() >> 11) * 0x1.0p-53; }

  constexpr bool chance(double probability) noexcept { return uniform() < probability; }

  // An independent generator, so that one component's draws do not disturb another's.
  constexpr Random fork() noexcept { return Random(next()); }

  static constexpr uint64_t min() noexcept { return 0; }
  static constexpr uint64_t max() noexcept { return std::numeric_limits<uint64_t>::max(); }
  constexpr uint64_t operator()() noexcept { return next(); }

 private:
  uint64_t state_[4];
};

}  // namespace towline
