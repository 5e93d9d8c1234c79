#include "base/copy/stream_copy.h"

#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace towline {

#if defined(__SSE2__)

namespace {

constexpr size_t kLine = 64;
constexpr size_t kPage = 4096;
constexpr size_t kPagesAtOnce = 4;  // keeps as many memory rows and prefetch streams busy
constexpr size_t kStep = kPage * kPagesAtOnce;
constexpr size_t kAhead = 8 * kLine;
constexpr size_t kAheadInPages = 4 * kLine;

// `to` is aligned to 16 bytes.
template <size_t kPrefetched>
void stream_line(uint8_t* to, const uint8_t* from) noexcept {
  _mm_prefetch(reinterpret_cast<const char*>(from + kPrefetched), _MM_HINT_T0);
  // One by one: compilers keep an array of them in memory.
  const auto* const source = reinterpret_cast<const __m128i*>(from);
  auto* const target = reinterpret_cast<__m128i*>(to);
  const __m128i first = _mm_loadu_si128(source);
  const __m128i second = _mm_loadu_si128(source + 1);
  const __m128i third = _mm_loadu_si128(source + 2);
  const __m128i fourth = _mm_loadu_si128(source + 3);
  _mm_stream_si128(target, first);
  _mm_stream_si128(target + 1, second);
  _mm_stream_si128(target + 2, third);
  _mm_stream_si128(target + 3, fourth);
}

bool overlap(const uint8_t* to, const uint8_t* from, size_t bytes) noexcept {
  return to < from + bytes && from < to + bytes;
}

// Ordinary stores up to the first line of the target; returns how many bytes.
size_t copy_head(uint8_t* to, const uint8_t* from) noexcept {
  const size_t head = (kLine - reinterpret_cast<uintptr_t>(to) % kLine) % kLine;
  std::memcpy(to, from, head);
  return head;
}

}  // namespace

void stream_copy(void* to_address, const void* from_address, size_t bytes) noexcept {
  auto* to = static_cast<uint8_t*>(to_address);
  const auto* from = static_cast<const uint8_t*>(from_address);
  if (bytes < kPage || overlap(to, from, bytes)) {
    if (bytes != 0) std::memmove(to, from, bytes);
    return;
  }
  const size_t head = copy_head(to, from);
  to += head;
  from += head;
  bytes -= head;
  for (; bytes >= kLine; bytes -= kLine, to += kLine, from += kLine) stream_line<kAhead>(to, from);
  _mm_sfence();
  std::memcpy(to, from, bytes);
}

void stream_copy_in_pages(void* to_address, const void* from_address, size_t bytes) noexcept {
  auto* to = static_cast<uint8_t*>(to_address);
  const auto* from = static_cast<const uint8_t*>(from_address);
  if (bytes < 2 * kStep || overlap(to, from, bytes)) {
    if (bytes != 0) std::memmove(to, from, bytes);
    return;
  }
  const size_t head = copy_head(to, from);
  to += head;
  from += head;
  bytes -= head;
  for (; bytes >= kStep; bytes -= kStep, to += kStep, from += kStep) {
    for (size_t line = 0; line < kPage; line += kLine)
      for (size_t page = 0; page < kStep; page += kPage)
        stream_line<kAheadInPages>(to + page + line, from + page + line);
  }
  _mm_sfence();
  std::memcpy(to, from, bytes);
}

#else

void stream_copy(void* to, const void* from, size_t bytes) noexcept {
  if (bytes != 0) std::memmove(to, from, bytes);
}

void stream_copy_in_pages(void* to, const void* from, size_t bytes) noexcept { stream_copy(to, from, bytes); }

#endif

}  // namespace towline
