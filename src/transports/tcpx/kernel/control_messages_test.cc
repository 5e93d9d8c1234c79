#include "transports/tcpx/kernel/control_messages.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <vector>

namespace towline::tcpx {
namespace {

constexpr uint32_t kPool = 5;

// A control buffer as the kernel would leave it, made with the C library's own macros.
class Control {
 public:
  void add(int level, int type, const void* data, std::size_t bytes) {
    const std::size_t at = bytes_.size();
    bytes_.resize(at + CMSG_SPACE(bytes));
    auto* const header = reinterpret_cast<cmsghdr*>(bytes_.data() + at);
    header->cmsg_level = level;
    header->cmsg_type = type;
    header->cmsg_len = CMSG_LEN(bytes);
    std::memcpy(CMSG_DATA(header), data, bytes);
  }
  void upstream(int type, uint64_t offset, uint32_t bytes, uint32_t token, uint32_t pool = kPool) {
    const struct {
      uint64_t offset;
      uint32_t bytes, token, pool, flags;
    } message = {offset, bytes, token, pool, 0};
    add(SOL_SOCKET, type, &message, sizeof message);
  }
  void legacy(int type, uint32_t offset, uint32_t bytes, uint32_t token) {
    const uint32_t message[3] = {offset, bytes, token};
    add(SOL_SOCKET, type, message, sizeof message);
  }
  Arrived decode(const Dialect& dialect, std::size_t returned, int flags = 0) {
    return decode_fragments(dialect, bytes_, flags, returned, kPool, out);
  }

  std::vector<uint8_t> bytes_;
  std::array<Fragment, 16> out;
};

TEST(ControlMessages, FragmentsAndLinearBytesComeInTheOrderOfTheStream) {
  Control control;
  control.upstream(79, 8192, 4096, 11);
  control.upstream(78, 0, 100, 0);
  control.upstream(79, 12345, 777, 12);
  const Arrived arrived = control.decode(kUpstream, 4096 + 100 + 777);
  ASSERT_EQ(arrived.wrong, nullptr);
  ASSERT_EQ(arrived.count, 3u);
  EXPECT_EQ(control.out[0].offset, 8192u);
  EXPECT_EQ(control.out[0].token, 11u);
  EXPECT_FALSE(control.out[0].linear);
  EXPECT_TRUE(control.out[1].linear);
  EXPECT_EQ(control.out[1].bytes, 100u);
  EXPECT_EQ(control.out[2].offset, 12345u);
}

TEST(ControlMessages, BytesThatNoMessageSpeaksOfAreLinear) {
  Control control;
  const uint32_t stamp[4] = {};
  control.add(SOL_SOCKET, SO_TIMESTAMP, stamp, sizeof stamp);  // another option's
  const Arrived arrived = control.decode(kUpstream, 999);
  ASSERT_EQ(arrived.wrong, nullptr);
  ASSERT_EQ(arrived.count, 1u);
  EXPECT_TRUE(control.out[0].linear);
  EXPECT_EQ(control.out[0].bytes, 999u);
}

TEST(ControlMessages, LegacyKernelsSendShortOffsetsLongOnesAndEmptyHeaders) {
  Control control;
  control.legacy(98, 0, 0, 0);
  control.legacy(99, 4096, 1000, 3);
  control.legacy(98, 0, 24, 0);
  const struct {
    uint64_t offset;
    uint32_t bytes, token;
  } wide = {uint64_t{5} << 32, 2000, 4};
  control.add(SOL_SOCKET, 99, &wide, sizeof wide);
  const Arrived arrived = control.decode(kLegacy, 3024);
  ASSERT_EQ(arrived.wrong, nullptr) << arrived.wrong;
  ASSERT_EQ(arrived.count, 3u);
  EXPECT_EQ(control.out[0].token, 3u);
  EXPECT_TRUE(control.out[1].linear);
  EXPECT_EQ(control.out[2].offset, uint64_t{5} << 32);
}

TEST(ControlMessages, WhatCannotBeMeantIsRefusedAndItsTokensAreKnown) {
  struct Case {
    const char* name;
    void (*make)(Control&);
    std::size_t returned;
    int flags;
    uint32_t known;
  };
  const Case cases[] = {
      {"longer than what was received", [](Control& c) { c.upstream(79, 0, 4097, 1); }, 4096, 0, 1},
      {"shorter than what was received", [](Control& c) { c.upstream(79, 0, 4095, 1); }, 4096, 0, 1},
      {"unknown pool", [](Control& c) { c.upstream(79, 0, 4096, 1, kPool + 1); }, 4096, 0, 0},
      {"no bytes", [](Control& c) { c.upstream(79, 0, 0, 1); }, 4096, 0, 1},
      {"cut off", [](Control& c) { c.upstream(79, 0, 4096, 1); }, 4096, MSG_CTRUNC, 1},
      {"sum wraps",
       [](Control& c) {
         c.upstream(79, 0, 4000, 1);
         c.upstream(79, 0, UINT32_MAX, 2);
       },
       4096, 0, 2},
      {"another length", [](Control& c) { c.legacy(79, 0, 4096, 1); }, 4096, 0, 0},
      {"too many",
       [](Control& c) {
         for (uint32_t i = 0; i < 17; ++i) c.upstream(79, 0, 1, i);
       },
       17, 0, 16},
  };
  for (const Case& each : cases) {
    Control control;
    each.make(control);
    const Arrived arrived = control.decode(kUpstream, each.returned, each.flags);
    EXPECT_NE(arrived.wrong, nullptr) << each.name;
    EXPECT_EQ(arrived.count, each.known) << each.name;
  }
}

TEST(ControlMessages, ALengthThatCannotBeRightEndsTheList) {
  for (const uint64_t length : {uint64_t{0}, uint64_t{15}, uint64_t{1000}, UINT64_MAX, UINT64_MAX - 7}) {
    Control control;
    control.upstream(79, 0, 4096, 1);
    const std::size_t second = control.bytes_.size();
    control.upstream(79, 0, 4096, 2);
    std::memcpy(control.bytes_.data() + second, &length, sizeof length);
    const Arrived arrived = control.decode(kUpstream, 8192);
    EXPECT_NE(arrived.wrong, nullptr) << length;
    EXPECT_EQ(arrived.count, 1u);
  }
}

TEST(ControlMessages, TokensAreReturnedInFewRanges) {
  std::vector<uint32_t> tokens = {5, 6, 7, 7, 9, 10, 4000000000u, UINT32_MAX};
  std::span<const uint32_t> left = tokens;
  const TokenBatch batch = next_batch(left);
  EXPECT_TRUE(left.empty());
  EXPECT_EQ(batch.tokens, 7u);  // one was there twice
  ASSERT_EQ(batch.count, 4u);
  EXPECT_EQ(batch.ranges[0], (TokenRange{5, 3}));
  EXPECT_EQ(batch.ranges[1], (TokenRange{9, 2}));
}

TEST(ControlMessages, OneCallReturnsNoMoreThanTheKernelTakes) {
  std::vector<uint32_t> apart;
  for (uint32_t i = 0; i < 300; ++i) apart.push_back(i * 2);
  std::span<const uint32_t> left = apart;
  uint32_t returned = 0;
  for (; !left.empty();) {
    const TokenBatch batch = next_batch(left);
    EXPECT_LE(batch.count, kMostRanges);
    returned += batch.tokens;
  }
  EXPECT_EQ(returned, 300u);

  std::vector<uint32_t> together;
  for (uint32_t i = 0; i < 2500; ++i) together.push_back(i);
  left = together;
  for (const uint32_t expected : {1024u, 1024u, 452u}) {
    const TokenBatch batch = next_batch(left);
    EXPECT_EQ(batch.count, 1u);
    EXPECT_EQ(batch.tokens, expected);
  }
  EXPECT_TRUE(left.empty());
}

TEST(ControlMessages, ASendNamesItsMemory) {
  alignas(cmsghdr) uint8_t bytes[24];
  ASSERT_EQ(encode_send(kUpstream, 42, 0, bytes), sizeof bytes);
  const auto* header = reinterpret_cast<const cmsghdr*>(bytes);
  EXPECT_EQ(header->cmsg_len, CMSG_LEN(4));
  EXPECT_EQ(header->cmsg_type, 79);
  uint32_t named = 0;
  std::memcpy(&named, CMSG_DATA(header), sizeof named);
  EXPECT_EQ(named, 42u);
  ASSERT_EQ(encode_send(kLegacy, 42, 7, bytes), sizeof bytes);
  EXPECT_EQ(header->cmsg_len, CMSG_LEN(8));
  EXPECT_EQ(header->cmsg_type, 99);
  uint8_t little[8];
  EXPECT_EQ(encode_send(kUpstream, 42, 0, little), 0u);
}

}  // namespace
}  // namespace towline::tcpx
