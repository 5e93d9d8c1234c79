// FP8 (e4m3) with a scale for each 128 elements.
#pragma once

#include "collectives/experts/job.h"
#include "collectives/small_floats.h"

namespace towline::collectives::experts {

inline constexpr float kLargestE4m3 = 448.0f;
// A group's largest value counts as this at least, so that scales are finite.
inline constexpr float kSmallestLargest = 1e-4f;

struct Scale {
  float factor;   // that values are multiplied by
  float inverse;  // that the receiver multiplies by
};

TOWLINE_DEVICE Scale scale_of(float largest, bool round) {
  const float inverse = largest / kLargestE4m3;
  if (!round) return {kLargestE4m3 / largest, inverse};
  // The next power of two that is not smaller.
  const uint32_t bits = std::bit_cast<uint32_t>(inverse);
  const uint32_t exponent = (bits >> 23) + ((bits & 0x7fffff) != 0 ? 1 : 0);
  return {std::bit_cast<float>((254 - exponent) << 23), std::bit_cast<float>(exponent << 23)};
}
TOWLINE_DEVICE uint8_t exponent_of(float scale) {
  return static_cast<uint8_t>(std::bit_cast<uint32_t>(scale) >> 23);
}

// Beyond the largest: the largest.
TOWLINE_DEVICE uint8_t to_e4m3(float value) {
  const float bounded = value > kLargestE4m3 ? kLargestE4m3 : value < -kLargestE4m3 ? -kLargestE4m3 : value;
  return Float8E4m3::narrow(bounded);
}

TOWLINE_DEVICE float low_of(uint32_t word) { return std::bit_cast<float>(word << 16); }
TOWLINE_DEVICE float high_of(uint32_t word) { return std::bit_cast<float>(word & 0xffff0000u); }

// The largest magnitude of 16 bfloat16.
TOWLINE_DEVICE float largest_of(uint64_t address) {
  float largest = 0;
  TOWLINE_UNROLL
  for (uint32_t half = 0; half < 2; ++half) {
    const device::Pack pack = device::load_pack(address + 16 * half);
    TOWLINE_UNROLL
    for (uint32_t i = 0; i < 4; ++i) {
      const float low = std::bit_cast<float>((pack.word[i] << 16) & 0x7fffffffu);
      const float high = std::bit_cast<float>(pack.word[i] & 0x7fff0000u);
      largest = low > largest ? low : largest;
      largest = high > largest ? high : largest;
    }
  }
  return largest;
}

// Two values; the first in the low byte.
TOWLINE_DEVICE uint32_t two_to_e4m3(float low, float high) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  uint16_t both;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(both) : "f"(high), "f"(low));
  return both;
#else
  return to_e4m3(low) | static_cast<uint32_t>(to_e4m3(high)) << 8;
#endif
}

// 16 bfloat16, scaled.
TOWLINE_DEVICE device::Pack quantised(uint64_t address, float factor) {
  device::Pack made;
  TOWLINE_UNROLL
  for (uint32_t half = 0; half < 2; ++half) {
    const device::Pack pack = device::load_pack(address + 16 * half);
    TOWLINE_UNROLL
    for (uint32_t i = 0; i < 2; ++i)
      made.word[2 * half + i] =
          two_to_e4m3(low_of(pack.word[2 * i]) * factor, high_of(pack.word[2 * i]) * factor) |
          two_to_e4m3(low_of(pack.word[2 * i + 1]) * factor, high_of(pack.word[2 * i + 1]) * factor) << 16;
  }
  return made;
}

}  // namespace towline::collectives::experts
