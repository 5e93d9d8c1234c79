// Floats of 16 and 8 bits to float32 and back, rounding to the nearest, ties to even. Written without
// branches so that compilers vectorise it. Internal linkage, since every set of kernels compiles its own
// copy.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#if defined(__CUDACC__)
#define TOWLINE_ANYWHERE __host__ __device__
#else
#define TOWLINE_ANYWHERE
#endif

namespace towline::collectives {
namespace {

// GPUs do it in one instruction, but for NaNs, whose bits stay as processors leave them.
struct Bfloat16 {
  using Bits = uint16_t;
  TOWLINE_ANYWHERE static float widen(Bits bits) {
    return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
  }
  TOWLINE_ANYWHERE static Bits narrow(float value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    Bits narrowed;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(narrowed) : "f"(value));
    return value != value ? static_cast<Bits>((bits >> 16) | 0x0040u) : narrowed;
#else
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
    return static_cast<Bits>(nan ? (bits >> 16) | 0x0040u : rounded);
#endif
  }
};

struct Float16 {
  using Bits = uint16_t;
  TOWLINE_ANYWHERE static float widen(Bits half) {
    const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
    const uint32_t magnitude = half & 0x7fffu;
#if defined(__CUDA_ARCH__)
    float widened;
    asm("cvt.f32.f16 %0, %1;" : "=f"(widened) : "h"(half));
    return magnitude > 0x7c00u ? std::bit_cast<float>(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13)
                               : widened;
#else
    // Scaling by 2^112 adjusts the exponent to float32's bias, also for subnormals.
    const float scaled = std::bit_cast<float>(magnitude << 13) * 0x1p112f;
    const uint32_t bits =
        magnitude >= 0x7c00u ? 0x7f800000u | (magnitude & 0x3ffu) << 13 : std::bit_cast<uint32_t>(scaled);
    return std::bit_cast<float>(sign | bits);
#endif
  }
  TOWLINE_ANYWHERE static Bits narrow(float value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    const uint32_t sign = (bits >> 16) & 0x8000u;
    const uint32_t magnitude = bits & 0x7fffffffu;
#if defined(__CUDA_ARCH__)
    Bits narrowed;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(narrowed) : "f"(value));
    return value != value ? static_cast<Bits>(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu)) : narrowed;
#else
    if (magnitude > 0x7f800000u) return static_cast<Bits>(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
    if (magnitude >= 0x477ff000u) return static_cast<Bits>(sign | 0x7c00u);
    if (magnitude < 0x38800000u) {
      // Adding 0.5 moves the subnormal's bits to the bottom and rounds them as hardware does.
      const float aligned = std::bit_cast<float>(magnitude) + 0.5f;
      return static_cast<Bits>(sign | (std::bit_cast<uint32_t>(aligned) - 0x3f000000u));
    }
    const uint32_t odd = (magnitude >> 13) & 1u;
    return static_cast<Bits>(sign | ((magnitude - 0x38000000u + 0xfffu + odd) >> 13));
#endif
  }
};

// Sign, Exponent and Mantissa bits in one byte. Finite: no infinity, and all ones is the NaN (e4m3fn).
template <int Exponent, int Mantissa, int Bias, bool Finite>
struct Float8 {
  using Bits = uint8_t;
  static constexpr uint32_t kMantissaMask = (1u << Mantissa) - 1;
  static constexpr uint32_t kTopExponent = (1u << Exponent) - 1;

  TOWLINE_ANYWHERE static float widen(Bits bits) {
    const float sign = (bits & 0x80u) != 0 ? -1.0f : 1.0f;
    const uint32_t exponent = (bits >> Mantissa) & kTopExponent;
    const uint32_t mantissa = bits & kMantissaMask;
    if (exponent == kTopExponent) {
      if (Finite) {
        if (mantissa == kMantissaMask) return std::bit_cast<float>(0x7fc00000u);
      } else {
        return mantissa != 0 ? std::bit_cast<float>(0x7fc00000u) : sign * HUGE_VALF;
      }
    }
    if (exponent == 0) return sign * std::ldexp(static_cast<float>(mantissa), 1 - Bias - Mantissa);
    return sign * std::ldexp(1.0f + static_cast<float>(mantissa) / static_cast<float>(1u << Mantissa),
                             static_cast<int>(exponent) - Bias);
  }

  TOWLINE_ANYWHERE static Bits narrow(float value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    const auto sign = static_cast<Bits>((bits >> 24) & 0x80u);
    const uint32_t magnitude = bits & 0x7fffffffu;
    constexpr auto kNan = static_cast<Bits>(0x7f);
    // Beyond the largest: torch's e4m3fn gives NaN, e5m2 infinity.
    constexpr auto kBeyond = static_cast<Bits>(Finite ? 0x7f : kTopExponent << Mantissa);
    if (magnitude > 0x7f800000u) return static_cast<Bits>(sign | kNan);
    if (magnitude == 0x7f800000u) return static_cast<Bits>(sign | kBeyond);
    const int exponent = static_cast<int>(magnitude >> 23) - 127;
    if (exponent < 1 - Bias) {
      const float scaled = std::ldexp(std::bit_cast<float>(magnitude), Bias - 1 + Mantissa);
      return static_cast<Bits>(sign | static_cast<Bits>(std::nearbyint(scaled)));
    }
    constexpr int kShift = 23 - Mantissa;
    const uint32_t odd = (magnitude >> kShift) & 1u;
    const uint32_t rounded = (magnitude + ((1u << (kShift - 1)) - 1) + odd) >> kShift;
    const uint32_t result = rounded - (static_cast<uint32_t>(127 - Bias) << Mantissa);
    constexpr uint32_t kLargest =
        Finite ? (kTopExponent << Mantissa | kMantissaMask) - 1 : (kTopExponent << Mantissa) - 1;
    return static_cast<Bits>(sign | (result > kLargest ? kBeyond : static_cast<Bits>(result)));
  }
};
using Float8E4m3 = Float8<4, 3, 7, true>;
using Float8E5m2 = Float8<5, 2, 15, false>;

}  // namespace
}  // namespace towline::collectives
