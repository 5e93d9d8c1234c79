// The processor's CRC instruction has a latency of three cycles but can start every cycle, so the hardware
// way runs three independent checksums over three adjacent stripes and joins them. Joining needs "what this
// checksum would be after n zero bytes": a linear map over GF(2), tabulated per stripe length (the method of
// Mark Adler's crc32c.c).
#include "base/copy/crc32c.h"

#include <array>
#include <cstring>

#include "base/copy/crc_table.h"
#include "base/sync/wake_path.h"

#if defined(__x86_64__)
#include <nmmintrin.h>
#define TOWLINE_CRC_TARGET __attribute__((target("sse4.2")))
#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#define TOWLINE_CRC_TARGET __attribute__((target("+crc")))
#endif

namespace towline {
namespace {

using Crc32c = CrcTable<uint32_t, 0x82f63b78>;
using Table = Crc32c::Table;

template <class Word>
Word load(const uint8_t* from) noexcept {
  Word value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

}  // namespace

uint32_t crc32c_table(std::span<const uint8_t> data, uint32_t previous) noexcept {
  return ~Crc32c::advance(data, ~previous);
}

#ifdef TOWLINE_CRC_TARGET

namespace {

// A linear map of 32-bit states: the images of the 32 single bits.
using BitMatrix = std::array<uint32_t, 32>;

constexpr uint32_t image_of(const BitMatrix& matrix, uint32_t state) {
  uint32_t result = 0;
  for (std::size_t bit = 0; bit < 32; ++bit) {
    if ((state >> bit & 1) != 0) result ^= matrix[bit];
  }
  return result;
}

// The map "append `bytes` zero bytes", for a power of two, and its four tables by byte of the state.
constexpr std::array<Table, 4> make_zeros_tables(std::size_t bytes) {
  BitMatrix matrix{};
  for (std::size_t bit = 0; bit < 32; ++bit) {
    matrix[bit] = Crc32c::step(1u << bit, 0);
  }
  for (; bytes > 1; bytes /= 2) {
    BitMatrix squared{};
    for (std::size_t bit = 0; bit < 32; ++bit) squared[bit] = image_of(matrix, matrix[bit]);
    matrix = squared;
  }
  std::array<Table, 4> tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    for (std::size_t k = 0; k < 4; ++k) tables[k][byte] = image_of(matrix, byte << (8 * k));
  }
  return tables;
}

constexpr std::size_t kLongStripe = 8192;
constexpr std::size_t kShortStripe = 256;
constexpr std::array<Table, 4> kLongZeros = make_zeros_tables(kLongStripe);
constexpr std::array<Table, 4> kShortZeros = make_zeros_tables(kShortStripe);

uint32_t append_zeros(const std::array<Table, 4>& tables, uint32_t state) noexcept {
  return tables[0][state & 0xff] ^ tables[1][state >> 8 & 0xff] ^ tables[2][state >> 16 & 0xff] ^
         tables[3][state >> 24];
}

#if defined(__x86_64__)
using State = uint64_t;  // what the instruction takes and gives; the upper half stays zero
TOWLINE_CRC_TARGET inline State step_u64(State state, uint64_t word) noexcept {
  return _mm_crc32_u64(state, word);
}
TOWLINE_CRC_TARGET inline State step_u32(State state, uint32_t word) noexcept {
  return _mm_crc32_u32(static_cast<uint32_t>(state), word);
}
TOWLINE_CRC_TARGET inline State step_u8(State state, uint8_t byte) noexcept {
  return _mm_crc32_u8(static_cast<uint32_t>(state), byte);
}
#else
using State = uint32_t;
TOWLINE_CRC_TARGET inline State step_u64(State state, uint64_t word) noexcept {
  return __builtin_aarch64_crc32cx(state, word);
}
TOWLINE_CRC_TARGET inline State step_u32(State state, uint32_t word) noexcept {
  return __builtin_aarch64_crc32cw(state, word);
}
TOWLINE_CRC_TARGET inline State step_u8(State state, uint8_t byte) noexcept {
  return __builtin_aarch64_crc32cb(state, byte);
}
#endif

// Takes as many times three stripes from the front as there are; returns the state after them.
TOWLINE_CRC_TARGET State three_stripes(State state, const uint8_t*& next, std::size_t& left,
                                       std::size_t stripe, const std::array<Table, 4>& zeros) noexcept {
  while (left >= 3 * stripe) {
    State second = 0;
    State third = 0;
    for (const uint8_t* end = next + stripe; next < end; next += 8) {
      state = step_u64(state, load<uint64_t>(next));
      second = step_u64(second, load<uint64_t>(next + stripe));
      third = step_u64(third, load<uint64_t>(next + 2 * stripe));
    }
    state = append_zeros(zeros, static_cast<uint32_t>(state)) ^ second;
    state = append_zeros(zeros, static_cast<uint32_t>(state)) ^ third;
    next += 2 * stripe;
    left -= 3 * stripe;
  }
  return state;
}

}  // namespace

// Most of what is checked is a header of 60 bytes, twice on either side of each small transfer: nothing but
// the steps themselves there.
TOWLINE_WAKE_PATH TOWLINE_CRC_TARGET uint32_t crc32c_hardware(std::span<const uint8_t> data,
                                                              uint32_t previous) noexcept {
  const uint8_t* next = data.data();
  std::size_t left = data.size();
  State state = static_cast<uint32_t>(~previous);
  if (left >= 3 * kShortStripe) {
    for (; (reinterpret_cast<uintptr_t>(next) & 7) != 0; ++next, --left) state = step_u8(state, *next);
    state = three_stripes(state, next, left, kLongStripe, kLongZeros);
    state = three_stripes(state, next, left, kShortStripe, kShortZeros);
  }
  for (; left >= 8; next += 8, left -= 8) state = step_u64(state, load<uint64_t>(next));
  if (left >= 4) {
    state = step_u32(state, load<uint32_t>(next));
    next += 4;
    left -= 4;
  }
  for (; left > 0; ++next, --left) state = step_u8(state, *next);
  return ~static_cast<uint32_t>(state);
}

TOWLINE_WAKE_PATH bool crc32c_hardware_available() noexcept {
#if defined(__x86_64__)
  static const bool available = __builtin_cpu_supports("sse4.2");
#else
  static const bool available = (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0;
#endif
  return available;
}

#else

uint32_t crc32c_hardware(std::span<const uint8_t> data, uint32_t previous) noexcept {
  return crc32c_table(data, previous);
}

bool crc32c_hardware_available() noexcept { return false; }

#endif

TOWLINE_WAKE_PATH uint32_t crc32c(std::span<const uint8_t> data, uint32_t previous) noexcept {
  return crc32c_hardware_available() ? crc32c_hardware(data, previous) : crc32c_table(data, previous);
}

}  // namespace towline
