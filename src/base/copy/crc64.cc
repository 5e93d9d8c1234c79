// The hardware way folds with carry-less multiplication, after Intel's paper "Fast CRC Computation for Generic
// Polynomials Using PCLMULQDQ Instruction": 16 bytes that lie n bits before the end are worth their product with
// x^n modulo the polynomial, which is added to the 16 bytes there. Four such blocks are in progress at a time,
// since a multiplication takes several cycles and one can start every cycle. The last 16 bytes that remain are
// a message of the same checksum, which the table takes.
//
// Bits are reflected: bit i of a word stands for x^(63 - i). The product of two such words stands for the
// product times x, so the constants are powers that are smaller by one.
#include "base/copy/crc64.h"

#include "base/copy/crc_table.h"

#if defined(__x86_64__)
#include <immintrin.h>
#define TOWLINE_CRC64_TARGET __attribute__((target("sse4.1,pclmul")))
#endif

namespace towline {
namespace {

using Crc64 = CrcTable<uint64_t, 0x9a6c9329ac4bc9b5>;

}  // namespace

uint64_t crc64_table(std::span<const uint8_t> data, uint64_t previous) noexcept {
  return ~Crc64::advance(data, ~previous);
}

#ifdef TOWLINE_CRC64_TARGET

namespace {

constexpr std::size_t kBlock = 16;
constexpr std::size_t kBlocks = 4;

// x^exponent modulo the polynomial, reflected.
constexpr uint64_t power(std::size_t exponent) {
  uint64_t result = uint64_t{1} << 63;
  for (; exponent > 0; --exponent) result = Crc64::times_x(result);
  return result;
}

// What moves a block `bytes` ahead: for its first word, and for its second, which is x^64 less.
struct Keys {
  uint64_t first;
  uint64_t second;
};
constexpr Keys keys(std::size_t bytes) { return {power(8 * bytes + 64 - 1), power(8 * bytes - 1)}; }
constexpr Keys kOverAll = keys(kBlock * kBlocks);
constexpr Keys kOverOne = keys(kBlock);

TOWLINE_CRC64_TARGET inline __m128i load_block(const uint8_t* from) noexcept {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
}

TOWLINE_CRC64_TARGET inline __m128i as_block(Keys keys) noexcept {
  return _mm_set_epi64x(static_cast<int64_t>(keys.second), static_cast<int64_t>(keys.first));
}

TOWLINE_CRC64_TARGET inline __m128i fold(__m128i block, __m128i keys, __m128i onto) noexcept {
  const __m128i first = _mm_clmulepi64_si128(block, keys, 0x00);
  const __m128i second = _mm_clmulepi64_si128(block, keys, 0x11);
  return _mm_xor_si128(_mm_xor_si128(first, second), onto);
}

}  // namespace

TOWLINE_CRC64_TARGET uint64_t crc64_hardware(std::span<const uint8_t> data, uint64_t previous) noexcept {
  const uint8_t* next = data.data();
  std::size_t left = data.size();
  if (left < kBlock * kBlocks) return crc64_table(data, previous);

  __m128i blocks[kBlocks];
  for (std::size_t i = 0; i < kBlocks; ++i) blocks[i] = load_block(next + i * kBlock);
  blocks[0] = _mm_xor_si128(blocks[0], _mm_cvtsi64_si128(static_cast<int64_t>(~previous)));
  next += kBlock * kBlocks;
  left -= kBlock * kBlocks;

  const __m128i over_all = as_block(kOverAll);
  for (; left >= kBlock * kBlocks; next += kBlock * kBlocks, left -= kBlock * kBlocks) {
    for (std::size_t i = 0; i < kBlocks; ++i)
      blocks[i] = fold(blocks[i], over_all, load_block(next + i * kBlock));
  }
  const __m128i over_one = as_block(kOverOne);
  __m128i block = blocks[0];
  for (std::size_t i = 1; i < kBlocks; ++i) block = fold(block, over_one, blocks[i]);
  for (; left >= kBlock; next += kBlock, left -= kBlock) block = fold(block, over_one, load_block(next));

  uint8_t rest[kBlock];
  _mm_storeu_si128(reinterpret_cast<__m128i*>(rest), block);
  return ~Crc64::advance({next, left}, Crc64::advance(rest, 0));
}

bool crc64_hardware_available() noexcept {
  static const bool available = __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
  return available;
}

#else

uint64_t crc64_hardware(std::span<const uint8_t> data, uint64_t previous) noexcept {
  return crc64_table(data, previous);
}

bool crc64_hardware_available() noexcept { return false; }

#endif

uint64_t crc64(std::span<const uint8_t> data, uint64_t previous) noexcept {
  return crc64_hardware_available() ? crc64_hardware(data, previous) : crc64_table(data, previous);
}

}  // namespace towline
