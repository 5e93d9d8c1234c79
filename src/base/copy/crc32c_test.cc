#include "base/copy/crc32c.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "base/random.h"

namespace towline {
namespace {

using Implementation = uint32_t (*)(std::span<const uint8_t>, uint32_t) noexcept;

std::vector<Implementation> implementations() {
  std::vector<Implementation> all{crc32c, crc32c_table};
  if (crc32c_hardware_available()) all.push_back(crc32c_hardware);
  return all;
}

uint32_t bit_by_bit(std::span<const uint8_t> data, uint32_t previous) {
  uint32_t state = ~previous;
  for (const uint8_t byte : data) {
    state ^= byte;
    for (int bit = 0; bit < 8; ++bit) state = (state & 1) != 0 ? (state >> 1) ^ 0x82f63b78u : state >> 1;
  }
  return ~state;
}

// RFC 3720, appendix B.4.
TEST(Crc32cTest, MatchesPublishedValues) {
  std::vector<uint8_t> ascending(32);
  for (std::size_t i = 0; i < 32; ++i) ascending[i] = static_cast<uint8_t>(i);
  std::vector<uint8_t> descending(ascending.rbegin(), ascending.rend());
  constexpr std::string_view kDigits = "123456789";
  const std::vector<uint8_t> digits(kDigits.begin(), kDigits.end());
  for (const Implementation crc : implementations()) {
    EXPECT_EQ(crc({}, 0), 0u);
    EXPECT_EQ(crc(digits, 0), 0xe3069283u);
    EXPECT_EQ(crc(std::vector<uint8_t>(32, 0), 0), 0x8a9136aau);
    EXPECT_EQ(crc(std::vector<uint8_t>(32, 0xff), 0), 0x62a8ab43u);
    EXPECT_EQ(crc(ascending, 0), 0x46dd794eu);
    EXPECT_EQ(crc(descending, 0), 0x113fdb5cu);
  }
}

TEST(Crc32cTest, AllImplementationsAgreeAtRandomLengthsAlignmentsAndCuts) {
  Random random(5);
  std::vector<uint8_t> data(100'000);
  for (uint8_t& byte : data) byte = static_cast<uint8_t>(random.next());
  for (int round = 0; round < 150; ++round) {
    const std::size_t start = random.below(64);
    const std::size_t most = std::vector<std::size_t>{16, 800, 3000, 99'000}[random.below(4)];
    const std::span<const uint8_t> part = std::span<const uint8_t>(data).subspan(start, random.below(most));
    const auto previous = static_cast<uint32_t>(random.next());
    const uint32_t expected = crc32c_table(part, previous);
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
