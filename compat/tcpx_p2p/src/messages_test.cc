// The messages of libtcpx_p2p: what one end writes, the other reads, wherever it lies in memory.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "messages.h"

namespace towline_tcpx {
namespace {

constexpr std::size_t kHeadBytes = 64;

std::span<const std::byte> bytes_of(const std::string& text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

Message sample(std::span<const std::byte> payload) {
  return {.type = MessageType::kMemory,
          .status = -7,
          .id = 1,
          .memory = UINT64_MAX,
          .offset = uint64_t{1} << 63,
          .bytes = 3,
          .tag = 4,
          .gpu = -1,
          .payload = payload};
}

// Notices are delivered where they arrived. Libraries of this kind have asked for handles at multiples of 16 bytes.
TEST(P2pMessages, AreReadAtEveryAlignment) {
  const std::string payload("any\0bytes", 9);
  const std::string written = encode(sample(bytes_of(payload)));
  for (std::size_t skip = 0; skip < 64; ++skip) {
    std::vector<std::byte> room(skip + written.size());
    std::memcpy(room.data() + skip, written.data(), written.size());
    const std::optional<Message> read = decode({room.data() + skip, written.size()});
    ASSERT_TRUE(read.has_value()) << skip;
    EXPECT_EQ(read->type, MessageType::kMemory);
    EXPECT_EQ(read->status, -7);
    EXPECT_EQ(read->id, 1u);
    EXPECT_EQ(read->memory, UINT64_MAX);
    EXPECT_EQ(read->offset, uint64_t{1} << 63);
    EXPECT_EQ(read->bytes, 3u);
    EXPECT_EQ(read->tag, 4u);
    EXPECT_EQ(read->gpu, -1);
    EXPECT_EQ(std::string(reinterpret_cast<const char*>(read->payload.data()), read->payload.size()),
              payload);
  }
}

TEST(P2pMessages, WhatIsNoneIsRefused) {
  const std::string good = encode(sample({}));
  ASSERT_EQ(good.size(), kHeadBytes);
  EXPECT_TRUE(decode(bytes_of(good)).has_value());
  for (std::size_t bytes = 0; bytes < kHeadBytes; ++bytes)
    EXPECT_FALSE(decode(bytes_of(good).first(bytes)).has_value()) << bytes;
  for (const std::size_t at : {0, 4, 12}) {  // the magic number, the type, what is reserved
    std::string bad = good;
    bad[at] = 99;
    EXPECT_FALSE(decode(bytes_of(bad)).has_value()) << at;
  }
}

}  // namespace
}  // namespace towline_tcpx
