#include "plan/block_copy.h"

#include <cstdint>

#include "base/copy/copy.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace towline {
namespace {

#if defined(__x86_64__)

constexpr std::size_t kStepBytes = 256;
constexpr std::size_t kMostBytes = 16 << 10;  // beyond, both are as fast as the caches

__attribute__((target("avx512f"), always_inline)) inline void copy_step(uint8_t* to,
                                                                        const uint8_t* from) noexcept {
  const __m512i first = _mm512_loadu_si512(from);
  const __m512i second = _mm512_loadu_si512(from + 64);
  const __m512i third = _mm512_loadu_si512(from + 128);
  const __m512i fourth = _mm512_loadu_si512(from + 192);
  _mm512_storeu_si512(to, first);
  _mm512_storeu_si512(to + 64, second);
  _mm512_storeu_si512(to + 128, third);
  _mm512_storeu_si512(to + 192, fourth);
}

// At least kStepBytes, disjoint. The end is a step of its own, which may go over what the last one did.
__attribute__((target("avx512f"))) void copy_wide(void* to, const void* from, std::size_t bytes) noexcept {
  auto* const target = static_cast<uint8_t*>(to);
  const auto* const source = static_cast<const uint8_t*>(from);
  const std::size_t last = bytes - kStepBytes;
  for (std::size_t at = 0; at < last; at += kStepBytes) copy_step(target + at, source + at);
  copy_step(target + last, source + last);
  _mm256_zeroupper();
}

#endif

}  // namespace

BlockCopy choose_block_copy(const void* to, const void* from, std::size_t bytes) noexcept {
#if defined(__x86_64__)
  const auto target = reinterpret_cast<uintptr_t>(to);
  const auto source = reinterpret_cast<uintptr_t>(from);
  const bool disjoint = target - source >= bytes && source - target >= bytes;
  if (disjoint && bytes >= kStepBytes && bytes <= kMostBytes && __builtin_cpu_supports("avx512f"))
    return copy_wide;
#else
  (void)to;
  (void)from;
  (void)bytes;
#endif
  return copy_bytes;
}

}  // namespace towline
