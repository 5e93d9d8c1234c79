#include "collectives/experts/logfmt.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "collectives/small_floats.h"

namespace towline::collectives::experts {
namespace {

constexpr float kHuge = std::numeric_limits<float>::infinity();

// A token, as it is sent and as it is read.
struct Sent {
  explicit Sent(const std::vector<float>& values) : hidden(static_cast<uint32_t>(values.size())) {
    for (const float value : values) bits.push_back(Bfloat16::narrow(value));
    std::vector<device::Pack> slot(Layout::slot_bytes_of(hidden) / sizeof(device::Pack));
    std::vector<device::Pack> from(2 * hidden / sizeof(device::Pack));
    std::memcpy(from.data(), bits.data(), 2 * hidden);
    const auto at = reinterpret_cast<uint64_t>(slot.data());
    bytes = send_cast(reinterpret_cast<uint64_t>(from.data()), at, hidden, scratch);
    // What lies behind is not read.
    std::memset(reinterpret_cast<uint8_t*>(at) + bytes, 0xff, Layout::slot_bytes_of(hidden) - bytes);
    got.resize(hidden);
    for (uint32_t unit = 0; unit < hidden / kUnitValues; ++unit)
      read_unit(at, hidden, unit, got.data() + unit * kUnitValues);
  }
  [[nodiscard]] float value(size_t i) const { return low_of(bits[i]); }

  uint32_t hidden;
  std::vector<uint16_t> bits;
  Scratch scratch = {};
  uint64_t bytes = 0;
  std::vector<float> got;
};

void expect_exact(const Sent& sent, size_t begin, size_t end) {
  for (size_t i = begin; i < end; ++i) EXPECT_EQ(Bfloat16::narrow(sent.got[i]), sent.bits[i]) << i;
}

// Half of a step, as a part of the value; below 2^-32 of the largest anything up to that.
void expect_close(const Sent& sent, size_t begin, size_t end) {
  double largest = 0;
  double smallest = kHuge;
  for (size_t i = begin; i < end; ++i) {
    const double size = std::fabs(sent.value(i));
    largest = std::max(largest, size);
    if (size != 0) smallest = std::min(smallest, size);
  }
  smallest = std::max(smallest, std::ldexp(largest, -32));
  const double step = std::exp2(std::log2(largest / smallest) / 510) - 1;
  for (size_t i = begin; i < end; ++i) {
    const double value = sent.value(i);
    EXPECT_LE(std::fabs(sent.got[i] - value),
              std::fabs(value) * (0.5 * step + 1e-5) + std::ldexp(largest, -32))
        << i << ": " << value << " of " << smallest << " to " << largest;
    if (value == 0) {
      EXPECT_EQ(sent.got[i], 0) << i;
    }
  }
}

std::vector<float> normal(size_t count, float scale, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> drawn(0, scale);
  std::vector<float> made(count);
  for (float& value : made) value = drawn(random);
  return made;
}

TEST(ExpertsLogFmt, SmallValuesTakeTenBits) {
  const Sent sent(normal(7168, 0.1f, 1));
  EXPECT_EQ(sent.bytes, 16 + 7168 * 10 / 8 + 7168 / 128 * 4);
  EXPECT_LE(sent.bytes, Layout::used_bytes_of(7168, kLogFmt));
  for (size_t group = 0; group < 56; ++group) expect_close(sent, group * 128, group * 128 + 128);
}

TEST(ExpertsLogFmt, GroupsWithALargeValueStayAsTheyAre) {
  std::vector<float> values = normal(16384, 0.01f, 2);
  for (size_t group = 0; group < 128; group += 3)
    values[group * 128 + group] = group % 2 == 0 ? 1.0f : -70.0f;
  const Sent sent(values);
  EXPECT_EQ(sent.bytes, 16 + 43 * 256 + 85 * 164);
  for (size_t group = 0; group < 128; ++group)
    if (group % 3 == 0)
      expect_exact(sent, group * 128, group * 128 + 128);
    else
      expect_close(sent, group * 128, group * 128 + 128);
}

TEST(ExpertsLogFmt, AllOfASlotIsEnoughForAnyToken) {
  const Sent sent(normal(512, 100, 3));
  EXPECT_EQ(sent.bytes, Layout::slot_bytes_of(512));
  expect_exact(sent, 0, 512);
}

TEST(ExpertsLogFmt, WhatHasNoLogarithmStaysAsItIs) {
  std::vector<float> values(128 * 5, 0.0f);
  values[1] = -0.0f;                                                                       // zeros alone
  for (size_t i = 128; i < 256; ++i) values[i] = 0.25f;                                    // one magnitude
  values[256] = 0.5f, values[257] = kHuge;                                                 // infinite
  values[384] = 0.5f, values[385] = std::numeric_limits<float>::quiet_NaN();               // none
  for (size_t i = 512; i < 640; ++i) values[i] = std::ldexp(static_cast<float>(i), -140);  // too small
  const Sent sent(values);
  EXPECT_EQ(sent.bytes, Layout::slot_bytes_of(640));
  expect_exact(sent, 0, 640);
}

TEST(ExpertsLogFmt, TheRangeEndsAtTwoToTheThirtySecond) {
  std::vector<float> values(128, 0.0f);
  for (size_t i = 0; i < 100; ++i) values[i] = std::ldexp(i % 2 == 0 ? 0.75f : -0.75f, -static_cast<int>(i));
  const Sent sent(values);
  EXPECT_EQ(sent.bytes, 16u + 164u);
  expect_close(sent, 0, 128);
  EXPECT_EQ(sent.got[90], 0);
  EXPECT_LT(sent.got[1], 0);
}

TEST(ExpertsLogFmt, TheLargestAndTheSmallestAreKept) {
  std::vector<float> values(128, 0.0f);
  values[7] = 0.8125f, values[99] = -0.001953125f, values[100] = 0.03f;
  const Sent sent(values);
  EXPECT_NEAR(sent.got[7], 0.8125f, 1e-6);
  EXPECT_NEAR(sent.got[99], -0.001953125f, 1e-8);
}

// As a rank that means ill could send it.
TEST(ExpertsLogFmt, AnyHeaderLeadsToThisSlotAlone) {
  for (const uint32_t word : {0u, 0xffffffffu, 0xa5a5a5a5u}) {
    const uint32_t header[] = {word, word, word, word};
    for (uint32_t groups = 1; groups <= 128; ++groups)
      for (uint32_t group = 0; group < groups; ++group) {
        const uint64_t end = is_cast(header, group) ? range_place(header, groups, group) + 4
                                                    : group_at(header, group) + kGroupBytes;
        ASSERT_LE(end, Layout::slot_bytes_of(uint64_t{groups} * kScaled));
      }
  }
}

}  // namespace
}  // namespace towline::collectives::experts
