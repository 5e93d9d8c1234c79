#include "transports/nixl/wire.h"

#include <gtest/gtest.h>

namespace towline::nixl_net {
namespace {

TEST(NixlNetWire, MessagesComeBackAsTheyWere) {
  const auto hello = decode_hello(encode(Hello{3, std::string("a\0b", 3)}));
  ASSERT_TRUE(hello);
  EXPECT_EQ(hello->worker, 3u);
  EXPECT_EQ(hello->info, std::string("a\0b", 3));
  EXPECT_EQ(decode_ask(encode(Ask{77}))->key, 77u);
  const auto good = decode_answer(encode(Answer{78, Status::kOk, "", "public"}));
  ASSERT_TRUE(good);
  EXPECT_EQ(good->public_data, "public");
  const auto bad = decode_answer(encode(Answer{79, Status::kStale, std::string(1000, 'x'), ""}));
  ASSERT_TRUE(bad);
  EXPECT_EQ(bad->reason.size(), kMaxReasonBytes);
  const auto address = decode_address(encode(Address{"UCX", {1, 2, 3}}));
  ASSERT_TRUE(address);
  EXPECT_EQ(address->type, "UCX");
  EXPECT_EQ(address->carrier, (std::vector<uint8_t>{1, 2, 3}));
}

TEST(NixlNetWire, WhatIsCutOrTooLongIsNothing) {
  const std::vector<uint8_t> hello = encode(Hello{1, "where it is"});
  for (std::size_t bytes = 0; bytes < hello.size(); ++bytes)
    EXPECT_FALSE(decode_hello(std::span{hello}.first(bytes))) << bytes;
  std::vector<uint8_t> longer = hello;
  longer.push_back(0);
  EXPECT_FALSE(decode_hello(longer));
  EXPECT_FALSE(decode_hello(encode(Hello{1, std::string(kMaxInfoBytes + 1, 'x')})));
  EXPECT_FALSE(decode_answer(encode(Answer{1, Status::kInProgress, "", ""})))
      << "neither granted nor refused";
  EXPECT_FALSE(decode_address(encode(Address{"", {1}})));
  EXPECT_FALSE(decode_address(encode(Address{std::string(kMaxTypeBytes + 1, 'X'), {1}})));
  EXPECT_FALSE(kind_of(std::vector<uint8_t>{1, 0, 0, 0, 1})) << "the core's";
}

}  // namespace
}  // namespace towline::nixl_net
