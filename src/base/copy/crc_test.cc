#include <gtest/gtest.h>

#include <string_view>
#include <vector>

#include "base/copy/crc32c.h"
#include "base/copy/crc64.h"
#include "base/random.h"

namespace towline {
namespace {

std::vector<uint8_t> ascending(std::size_t bytes) {
  std::vector<uint8_t> data(bytes);
  for (std::size_t i = 0; i < bytes; ++i) data[i] = static_cast<uint8_t>(i);
  return data;
}

// The checksums of the digits 1 to 9, and of zeros, ones, ascending and descending bytes.
template <class Value>
struct Published {
  std::size_t bytes;
  Value digits, zeros, ones, ascending, descending;
};

struct Castagnoli {
  using Value = uint32_t;
  static constexpr Value kPolynomial = 0x82f63b78;
  // RFC 3720, appendix B.4.
  static constexpr Published<Value> kPublished = {32,         0xe3069283, 0x8a9136aa,
                                                  0x62a8ab43, 0x46dd794e, 0x113fdb5c};
  static constexpr auto kBest = crc32c;
  static constexpr auto kTable = crc32c_table;
  static constexpr auto kHardware = crc32c_hardware;
  static bool hardware() { return crc32c_hardware_available(); }
};

struct Nvme {
  using Value = uint64_t;
  static constexpr Value kPolynomial = 0x9a6c9329ac4bc9b5;
  // NVM Express, NVM Command Set Specification 1.0, section 5.2.1.3.4; the digits are the catalogue of CRCs' check.
  static constexpr Published<Value> kPublished = {4096,
                                                  0xae8b14860a799888,
                                                  0x6482d367eb22b64e,
                                                  0xc0ddba7302eca3ac,
                                                  0x3e729f5f6750449c,
                                                  0x9a2df64b8e9e517e};
  static constexpr auto kBest = crc64;
  static constexpr auto kTable = crc64_table;
  static constexpr auto kHardware = crc64_hardware;
  static bool hardware() { return crc64_hardware_available(); }
};

template <class Crc>
class CrcTest : public ::testing::Test {
 protected:
  using Value = typename Crc::Value;
  using Way = Value (*)(std::span<const uint8_t>, Value) noexcept;

  static std::vector<Way> ways() {
    std::vector<Way> all{Crc::kBest, Crc::kTable};
    if (Crc::hardware()) all.push_back(Crc::kHardware);
    return all;
  }
  static Value bit_by_bit(std::span<const uint8_t> data, Value previous) {
    Value state = ~previous;
    for (const uint8_t byte : data) {
      state ^= byte;
      for (int bit = 0; bit < 8; ++bit)
        state = (state & 1) != 0 ? (state >> 1) ^ Crc::kPolynomial : state >> 1;
    }
    return ~state;
  }
};

using Checksums = ::testing::Types<Castagnoli, Nvme>;
TYPED_TEST_SUITE(CrcTest, Checksums);

TYPED_TEST(CrcTest, MatchesPublishedValues) {
  constexpr auto& kPublished = TypeParam::kPublished;
  const std::vector<uint8_t> up = ascending(kPublished.bytes);
  constexpr std::string_view kDigits = "123456789";
  for (const auto crc : TestFixture::ways()) {
    EXPECT_EQ(crc({}, 0), 0u);
    EXPECT_EQ(crc(std::vector<uint8_t>(kDigits.begin(), kDigits.end()), 0), kPublished.digits);
    EXPECT_EQ(crc(std::vector<uint8_t>(kPublished.bytes, 0), 0), kPublished.zeros);
    EXPECT_EQ(crc(std::vector<uint8_t>(kPublished.bytes, 0xff), 0), kPublished.ones);
    EXPECT_EQ(crc(up, 0), kPublished.ascending);
    EXPECT_EQ(crc(std::vector<uint8_t>(up.rbegin(), up.rend()), 0), kPublished.descending);
  }
}

TYPED_TEST(CrcTest, AllWaysAgreeAtRandomLengthsAlignmentsAndCuts) {
  Random random(5);
  std::vector<uint8_t> data(100'000);
  for (uint8_t& byte : data) byte = static_cast<uint8_t>(random.next());
  for (int round = 0; round < 300; ++round) {
    const std::size_t start = random.below(64);
    const std::size_t most = std::vector<std::size_t>{16, 80, 300, 800, 3000, 99'000}[random.below(6)];
    const std::span<const uint8_t> part = std::span<const uint8_t>(data).subspan(start, random.below(most));
    const auto previous = static_cast<typename TypeParam::Value>(random.next());
    const auto expected = TypeParam::kTable(part, previous);
    const std::size_t cut = random.below(part.size() + 1);
    if (round % 20 == 0) {
      ASSERT_EQ(TestFixture::bit_by_bit(part, previous), expected);
    }
    for (const auto crc : TestFixture::ways()) {
      ASSERT_EQ(crc(part, previous), expected) << part.size();
      ASSERT_EQ(crc(part.subspan(cut), crc(part.first(cut), previous)), expected)
          << part.size() << " " << cut;
    }
  }
}

}  // namespace
}  // namespace towline
