#include "collectives/stream_copy.h"

#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace towline::collectives {

#if defined(__SSE2__)

void stream_copy(void* to_address, const void* from_address, size_t bytes) noexcept {
  constexpr size_t kLine = 64;
  auto* to = static_cast<uint8_t*>(to_address);
  const auto* from = static_cast<const uint8_t*>(from_address);
  if (bytes < 4096) {
    if (bytes != 0) std::memcpy(to, from, bytes);
    return;
  }
  const size_t head = (kLine - reinterpret_cast<uintptr_t>(to) % kLine) % kLine;
  std::memcpy(to, from, head);
  to += head;
  from += head;
  bytes -= head;
  for (; bytes >= kLine; bytes -= kLine, to += kLine, from += kLine) {
    const auto* const source = reinterpret_cast<const __m128i*>(from);
    auto* const target = reinterpret_cast<__m128i*>(to);
    _mm_prefetch(reinterpret_cast<const char*>(from + 8 * kLine), _MM_HINT_T0);
    const __m128i first = _mm_loadu_si128(source);
    const __m128i second = _mm_loadu_si128(source + 1);
    const __m128i third = _mm_loadu_si128(source + 2);
    const __m128i fourth = _mm_loadu_si128(source + 3);
    _mm_stream_si128(target, first);
    _mm_stream_si128(target + 1, second);
    _mm_stream_si128(target + 2, third);
    _mm_stream_si128(target + 3, fourth);
  }
  _mm_sfence();
  if (bytes != 0) std::memcpy(to, from, bytes);
}

#else

void stream_copy(void* to, const void* from, size_t bytes) noexcept {
  if (bytes != 0) std::memcpy(to, from, bytes);
}

#endif

}  // namespace towline::collectives
