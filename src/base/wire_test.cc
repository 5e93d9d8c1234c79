#include "base/wire.h"

#include <gtest/gtest.h>

#include <array>
#include <string>

#include "base/random.h"

namespace towline {
namespace {

TEST(WireTest, WhatIsWrittenIsRead) {
  std::vector<uint8_t> bytes{0xee};  // appends
  WireWriter writer(bytes);
  writer.u8(1);
  writer.u16(0x0203);
  writer.u32(0x04050607);
  writer.u64(UINT64_MAX - 1);
  writer.i32(-5);
  writer.i64(INT64_MIN);
  writer.f64(0.1);
  writer.string16("name");
  writer.bytes32(std::array<uint8_t, 3>{7, 8, 9});
  writer.zeros(2);
  ASSERT_TRUE(writer.ok());
  EXPECT_EQ(writer.size() + 1, bytes.size());
  EXPECT_EQ((std::vector<uint8_t>(bytes.begin(), bytes.begin() + 8)),
            (std::vector<uint8_t>{0xee, 1, 3, 2, 7, 6, 5, 4}));

  WireReader reader(std::span<const uint8_t>(bytes).subspan(1));
  EXPECT_EQ(reader.u8(), 1);
  EXPECT_EQ(reader.u16(), 0x0203);
  EXPECT_EQ(reader.u32(), 0x04050607u);
  EXPECT_EQ(reader.u64(), UINT64_MAX - 1);
  EXPECT_EQ(reader.i32(), -5);
  EXPECT_EQ(reader.i64(), INT64_MIN);
  EXPECT_EQ(reader.f64(), 0.1);
  EXPECT_EQ(reader.string16(4), "name");
  EXPECT_EQ(reader.bytes32(3).size(), 3u);
  EXPECT_FALSE(reader.finished());
  reader.skip(2);
  EXPECT_TRUE(reader.finished());
}

TEST(WireTest, EveryCutOfAMessageFailsAndStaysFailed) {
  std::vector<uint8_t> bytes;
  WireWriter writer(bytes);
  writer.u32(9);
  writer.string16("abc");
  writer.u64(1);
  for (std::size_t cut = 0; cut < bytes.size(); ++cut) {
    WireReader reader(std::span<const uint8_t>(bytes).first(cut));
    reader.u32();
    reader.string16();
    EXPECT_EQ(reader.u64(), 0u);
    EXPECT_FALSE(reader.ok());
    EXPECT_EQ(reader.u8(), 0);
    EXPECT_EQ(reader.remaining(), 0u);
    EXPECT_FALSE(reader.finished());
  }
}

TEST(WireTest, LengthsThatLieAreRefused) {
  const std::array<uint8_t, 6> bytes{0xff, 0xff, 0xff, 0xff, 1, 2};
  EXPECT_TRUE(WireReader(bytes).bytes32(UINT32_MAX).empty());
  EXPECT_TRUE(WireReader(bytes).string16().empty());
  WireReader counted(bytes);
  EXPECT_EQ(counted.count32(UINT32_MAX, 8), 0u);
  EXPECT_FALSE(counted.ok());
  const std::array<uint8_t, 6> short_list{2, 0, 0, 0, 1, 2};
  EXPECT_EQ(WireReader(short_list).count32(2, 1), 2u);
  EXPECT_EQ(WireReader(short_list).count32(1, 1), 0u);
  EXPECT_EQ(WireReader(short_list).count32(9, 2), 0u);
  WireReader limited(short_list);
  EXPECT_TRUE(limited.bytes32(1).empty());
  EXPECT_FALSE(limited.ok());
}

TEST(WireTest, AFixedSpanIsNeverOverrun) {
  std::array<uint8_t, 8> bytes{};
  WireWriter writer(std::span<uint8_t>(bytes).first(6));
  writer.u32(1);
  writer.string16("x");
  EXPECT_FALSE(writer.ok());
  EXPECT_EQ(writer.size(), 4u);  // not even the length was written
  writer.u8(1);                  // would fit, but failure is sticky
  EXPECT_EQ(writer.size(), 4u);
  EXPECT_EQ(bytes[4], 0);
}

TEST(WireTest, AVectorIsBoundedAndLengthsTooLongToSayFail) {
  std::vector<uint8_t> bytes;
  WireWriter bounded(bytes, 10);
  bounded.zeros(11);
  EXPECT_FALSE(bounded.ok());
  EXPECT_TRUE(bytes.empty());
  WireWriter writer(bytes);
  writer.string16(std::string(65536, 'x'));
  EXPECT_FALSE(writer.ok());
}

TEST(WireTest, ALengthIsPatchedInPlace) {
  std::vector<uint8_t> bytes{1, 2, 3};
  WireWriter writer(bytes);
  writer.u32(0);
  writer.u8(9);
  writer.patch_u32(0, 77);
  EXPECT_TRUE(writer.ok());
  WireReader reader(writer.written());
  EXPECT_EQ(reader.u32(), 77u);
  writer.patch_u32(2, 1);
  EXPECT_FALSE(writer.ok());
}

TEST(WireTest, RandomBytesAreReadWithoutLeavingThem) {
  Random random(3);
  for (int round = 0; round < 2000; ++round) {
    std::vector<uint8_t> bytes(random.below(40));
    for (uint8_t& byte : bytes) byte = random.chance(0.6) ? 0 : static_cast<uint8_t>(random.next());
    WireReader reader(bytes);
    uint64_t sum = 0;
    for (int i = 0; i < 8; ++i) {
      for (const uint8_t byte : reader.bytes16()) sum += byte;
      for (const uint8_t byte : reader.bytes32(random.below(50))) sum += byte;
      sum += reader.u64() + reader.count32(10, 3);
    }
    ASSERT_LE(reader.position(), bytes.size()) << sum;
  }
}

}  // namespace
}  // namespace towline
