// LogFMT: results of a combine in 10 bits for each value, a sign and 9 bits of the logarithm of its magnitude. docs/experts.md says how
// far that is from the value.
//
// 128 values are a group. A group whose largest magnitude is below 1 is *cast*: code 0 is zero, and codes 1 to 511 are the steps from the
// logarithm of its smallest magnitude that is not zero (at least 2^-32 of the largest) to that of its largest. All other groups stay
// bfloat16. A token in its slot:
//
//   header   128 bits: the groups that are cast
//   groups   in their order: 160 bytes of one that is cast, else 256
//   ranges   of the groups that are cast, 4 bytes each: the largest magnitude << 16 | the smallest, as bits of bfloat16
//
// 16 neighbouring values are a unit, of five words. Word w of unit u of a cast group is word 8 * w + u of the group, so that threads
// which take a unit each write neighbouring words. Word w has the codes of the values 3w, 3w + 1 and 3w + 2, and two bits of value 15's.
#pragma once

#include <bit>
#include <cmath>

#include "collectives/experts/dispatch.h"

namespace towline::collectives::experts {

inline constexpr uint32_t kUnitValues = 16;
inline constexpr uint32_t kUnits = kScaled / kUnitValues;  // of a group
inline constexpr uint32_t kUnitWords = 5;
inline constexpr uint32_t kHeaderWords = kHeaderBytes / sizeof(uint32_t);
inline constexpr uint32_t kGroupBytes = 2 * kScaled;
inline constexpr uint32_t kCastBytes = kUnits * kUnitWords * sizeof(uint32_t);
inline constexpr uint32_t kCodeBits = 9;
inline constexpr uint32_t kMostCode = (1u << kCodeBits) - 1;
inline constexpr float kMostOctaves = 32.0f;
static_assert(kMostHidden / kScaled <= 8 * kHeaderBytes);

#if defined(__CUDA_ARCH__)
TOWLINE_DEVICE float log2_of(float value) { return __log2f(value); }
TOWLINE_DEVICE float exp2_of(float value) { return exp2f(value); }
TOWLINE_DEVICE uint32_t ones_in(uint32_t word) { return static_cast<uint32_t>(__popc(word)); }
#else
inline float log2_of(float value) { return std::log2(value); }
inline float exp2_of(float value) { return std::exp2(value); }
inline uint32_t ones_in(uint32_t word) { return static_cast<uint32_t>(std::popcount(word)); }
#endif

// ---- Ranges of magnitudes: as they are sent

inline constexpr uint32_t kNoRange = 0x7fff;  // of nothing but zeros

TOWLINE_DEVICE uint32_t range_of_one(uint32_t magnitude) {
  return magnitude == 0 ? kNoRange : magnitude << 16 | magnitude;
}
TOWLINE_DEVICE uint32_t joined(uint32_t range, uint32_t other) {
  const uint32_t largest = range >> 16 > other >> 16 ? range >> 16 : other >> 16;
  const uint32_t smallest = (range & 0xffff) < (other & 0xffff) ? range & 0xffff : other & 0xffff;
  return largest << 16 | smallest;
}
// Of a unit of bfloat16.
TOWLINE_DEVICE uint32_t range_at(uint64_t address) {
  uint32_t range = kNoRange;
  TOWLINE_UNROLL
  for (uint32_t half = 0; half < 2; ++half) {
    const device::Pack pack = device::load_pack(address + 16 * half);
    TOWLINE_UNROLL
    for (uint32_t i = 0; i < 4; ++i)
      range = joined(joined(range, range_of_one(pack.word[i] & 0x7fff)),
                     range_of_one(pack.word[i] >> 16 & 0x7fff));
  }
  return range;
}

// A group of that range is cast. Not so where all magnitudes are one, or too small to have a logarithm on a GPU.
TOWLINE_DEVICE bool casts(uint32_t range) {
  constexpr uint32_t kOne = 0x3f80;
  constexpr uint32_t kSmallestNormal = 0x0080;
  const uint32_t largest = range >> 16;
  return largest < kOne && largest >= kSmallestNormal && (range & 0xffff) < largest;
}

struct Steps {
  float low;   // the logarithm of code 1
  float step;  // between codes
};
TOWLINE_DEVICE Steps steps_of(uint32_t range) {
  const float high = log2_of(high_of(range));
  const float smallest = log2_of(low_of(range));
  const float low = smallest > high - kMostOctaves ? smallest : high - kMostOctaves;
  return {low, (high - low) / static_cast<float>(kMostCode - 1)};
}

// ---- Units

struct CastUnit {
  uint32_t word[kUnitWords];
};

// Values are rounded to the nearest step by their magnitude, not by its logarithm.
TOWLINE_DEVICE CastUnit cast_unit(uint64_t address, uint32_t range) {
  const Steps steps = steps_of(range);
  const float inverse = 1.0f / steps.step;
  const float offset = 2.0f - (log2_of((1.0f + exp2_of(steps.step)) * 0.5f) + steps.low) * inverse;
  const device::Pack packs[] = {device::load_pack(address), device::load_pack(address + 16)};
  CastUnit made = {};
  TOWLINE_UNROLL
  for (uint32_t i = 0; i < kUnitValues; ++i) {
    const uint32_t bits = packs[i / 8].word[i / 2 % 4] >> 16 * (i % 2) & 0xffff;
    const float place = log2_of(low_of(bits & 0x7fff)) * inverse + offset;
    const uint32_t near = place > 0.0f ? static_cast<uint32_t>(place) : 0;
    const uint32_t code = (near > kMostCode ? kMostCode : near) | (bits >> 15) << kCodeBits;
    if (i < 3 * kUnitWords)
      made.word[i / 3] |= code << 10 * (i % 3);
    else
      for (uint32_t w = 0; w < kUnitWords; ++w) made.word[w] |= (code >> 2 * w & 3) << 30;
  }
  return made;
}

TOWLINE_DEVICE float value_of(uint32_t code, const Steps& steps) {
  const uint32_t place = code & kMostCode;
  const float magnitude = place == 0 ? 0.0f : exp2_of(static_cast<float>(place - 1) * steps.step + steps.low);
  return code >> kCodeBits != 0 ? -magnitude : magnitude;
}

// ---- Tokens. All threads

// Both take all words in turn, so that a header can stay in registers.
TOWLINE_DEVICE uint32_t casts_before(const uint32_t* header, uint32_t group) {
  uint32_t count = 0;
  TOWLINE_UNROLL
  for (uint32_t w = 0; w < kHeaderWords; ++w) {
    const uint32_t below = group < 32 * (w + 1) ? (1u << group % 32) - 1 : 0xffffffffu;
    if (group > 32 * w) count += ones_in(header[w] & below);
  }
  return count;
}
TOWLINE_DEVICE bool is_cast(const uint32_t* header, uint32_t group) {
  uint32_t word = 0;
  TOWLINE_UNROLL
  for (uint32_t w = 0; w < kHeaderWords; ++w) word = group / 32 == w ? header[w] : word;
  return (word >> group % 32 & 1) != 0;
}
// Where a group lies in the slot; of the number of groups: where the ranges do.
TOWLINE_DEVICE uint64_t group_at(const uint32_t* header, uint32_t group) {
  return kHeaderBytes + uint64_t{group} * kGroupBytes -
         uint64_t{casts_before(header, group)} * (kGroupBytes - kCastBytes);
}
TOWLINE_DEVICE uint64_t range_place(const uint32_t* header, uint32_t groups, uint32_t group) {
  return group_at(header, groups) + casts_before(header, group) * sizeof(uint32_t);
}

// Finds the groups that are cast: scratch.cast, and the range of each in the place of its first unit in scratch.range.
TOWLINE_DEVICE void find_casts(uint64_t from, uint32_t hidden, Scratch& scratch) {
  for (uint32_t w = device::thread(); w < kHeaderWords; w += device::threads()) scratch.cast[w] = 0;
  for (uint32_t unit = device::thread(); unit < hidden / kUnitValues; unit += device::threads())
    scratch.range[unit] = range_at(from + uint64_t{unit} * 2 * kUnitValues);
  device::sync();
  for (uint32_t group = device::thread(); group < hidden / kScaled; group += device::threads()) {
    uint32_t range = scratch.range[group * kUnits];
    for (uint32_t i = 1; i < kUnits; ++i) range = joined(range, scratch.range[group * kUnits + i]);
    scratch.range[group * kUnits] = range;
    if (casts(range)) add_in_block(&scratch.cast[group / 32], 1u << group % 32);
  }
  device::sync();
}

// Writes a token to its slot. Returns its bytes there.
TOWLINE_DEVICE uint64_t send_cast(uint64_t from, uint64_t slot, uint32_t hidden, Scratch& scratch) {
  find_casts(from, hidden, scratch);
  const uint32_t groups = hidden / kScaled;
  for (uint32_t w = device::thread(); w < kHeaderWords; w += device::threads())
    device::store_unit<uint32_t>(slot + w * sizeof(uint32_t), scratch.cast[w]);
  for (uint32_t unit = device::thread(); unit < hidden / kUnitValues; unit += device::threads()) {
    const uint32_t group = unit / kUnits;
    const uint32_t within = unit % kUnits;
    const uint64_t source = from + uint64_t{unit} * 2 * kUnitValues;
    const uint64_t to = slot + group_at(scratch.cast, group);
    if (!is_cast(scratch.cast, group)) {
      for (uint32_t half = 0; half < 2; ++half)
        device::store_pack(to + within * 2 * kUnitValues + 16 * half, device::load_pack(source + 16 * half));
      continue;
    }
    const uint32_t range = scratch.range[group * kUnits];
    const CastUnit cast = cast_unit(source, range);
    TOWLINE_UNROLL
    for (uint32_t w = 0; w < kUnitWords; ++w)
      device::store_unit<uint32_t>(to + (w * kUnits + within) * sizeof(uint32_t), cast.word[w]);
    if (within == 0) device::store_unit<uint32_t>(slot + range_place(scratch.cast, groups, group), range);
  }
  const uint64_t bytes = range_place(scratch.cast, groups, groups);
  device::sync();
  return bytes;
}

// A unit of a token that lies in a slot.
TOWLINE_DEVICE void read_unit(uint64_t slot, uint32_t hidden, uint32_t unit, float* values) {
  const device::Pack header = device::load_pack(slot);
  const uint32_t group = unit / kUnits;
  const uint32_t within = unit % kUnits;
  const uint64_t at = slot + group_at(header.word, group);
  if (!is_cast(header.word, group)) {
    TOWLINE_UNROLL
    for (uint32_t half = 0; half < 2; ++half) {
      const device::Pack pack = device::load_pack(at + within * 2 * kUnitValues + 16 * half);
      TOWLINE_UNROLL
      for (uint32_t i = 0; i < 4; ++i) {
        values[8 * half + 2 * i] = low_of(pack.word[i]);
        values[8 * half + 2 * i + 1] = high_of(pack.word[i]);
      }
    }
    return;
  }
  const Steps steps =
      steps_of(device::load_unit<uint32_t>(slot + range_place(header.word, hidden / kScaled, group)));
  uint32_t last = 0;
  TOWLINE_UNROLL
  for (uint32_t w = 0; w < kUnitWords; ++w) {
    const auto word = device::load_unit<uint32_t>(at + (w * kUnits + within) * sizeof(uint32_t));
    last |= word >> 30 << 2 * w;
    TOWLINE_UNROLL
    for (uint32_t i = 0; i < 3; ++i) values[3 * w + i] = value_of(word >> 10 * i & 0x3ff, steps);
  }
  values[kUnitValues - 1] = value_of(last, steps);
}

}  // namespace towline::collectives::experts
