#include "base/copy/crc64.h"

#include <gtest/gtest.h>

#include <string_view>
#include <vector>

#include "base/random.h"

namespace towline {
namespace {

using Implementation = uint64_t (*)(std::span<const uint8_t>, uint64_t) noexcept;

std::vector<Implementation> implementations() {
  std::vector<Implementation> all{crc64, crc64_table};
  if (crc64_hardware_available()) all.push_back(crc64_hardware);
  return all;
}

uint64_t bit_by_bit(std::span<const uint8_t> data, uint64_t previous) {
  uint64_t state = ~previous;
  for (const uint8_t byte : data) {
    state ^= byte;
    for (int bit = 0; bit < 8; ++bit)
      state = (state & 1) != 0 ? (state >> 1) ^ 0x9a6c9329ac4bc9b5u : state >> 1;
  }
  return ~state;
}

// NVM Express, NVM Command Set Specification 1.0, section 5.2.1.3.4; the digits are the catalogue of CRCs' check.
TEST(Crc64Test, MatchesPublishedValues) {
  std::vector<uint8_t> ascending(4096);
  for (std::size_t i = 0; i < ascending.size(); ++i) ascending[i] = static_cast<uint8_t>(i);
  const std::vector<uint8_t> descending(ascending.rbegin(), ascending.rend());
  constexpr std::string_view kDigits = "123456789";
  const std::vector<uint8_t> digits(kDigits.begin(), kDigits.end());
  for (const Implementation crc : implementations()) {
    EXPECT_EQ(crc({}, 0), 0u);
    EXPECT_EQ(crc(digits, 0), 0xae8b14860a799888u);
    EXPECT_EQ(crc(std::vector<uint8_t>(4096, 0), 0), 0x6482d367eb22b64eu);
    EXPECT_EQ(crc(std::vector<uint8_t>(4096, 0xff), 0), 0xc0ddba7302eca3acu);
    EXPECT_EQ(crc(ascending, 0), 0x3e729f5f6750449cu);
    EXPECT_EQ(crc(descending, 0), 0x9a2df64b8e9e517eu);
  }
}

TEST(Crc64Test, AllImplementationsAgreeAtRandomLengthsAlignmentsAndCuts) {
  Random random(5);
  std::vector<uint8_t> data(100'000);
  for (uint8_t& byte : data) byte = static_cast<uint8_t>(random.next());
  for (int round = 0; round < 300; ++round) {
    const std::size_t start = random.below(64);
    const std::size_t most = std::vector<std::size_t>{16, 80, 300, 3000, 99'000}[random.below(5)];
    const std::span<const uint8_t> part = std::span<const uint8_t>(data).subspan(start, random.below(most));
    const uint64_t previous = random.next();
    const uint64_t expected = crc64_table(part, previous);
    const std::size_t cut = random.below(part.size() + 1);
    if (round % 20 == 0) {
      ASSERT_EQ(bit_by_bit(part, previous), expected);
    }
    for (const Implementation crc : implementations()) {
      ASSERT_EQ(crc(part, previous), expected) << part.size();
      ASSERT_EQ(crc(part.subspan(cut), crc(part.first(cut), previous)), expected)
          << part.size() << " " << cut;
    }
  }
}

}  // namespace
}  // namespace towline
