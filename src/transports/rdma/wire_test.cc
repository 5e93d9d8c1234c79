#include "transports/rdma/wire.h"

#include <gtest/gtest.h>

#include "base/id.h"

namespace towline::rdma {
namespace {

fabric::EngineAddress some_engine() {
  fabric::EngineAddress address;
  address.engine = Id::random();
  address.rails = {{"loopback:a", {1, 2}}, {"ofi:shm", {}}};
  return address;
}

TEST(RdmaWire, MessagesComeBackAsTheyWere) {
  const fabric::EngineAddress engine = some_engine();
  const auto hello = decode_hello(encode_hello(engine));
  ASSERT_TRUE(hello);
  EXPECT_EQ(hello->engine, engine.engine);
  EXPECT_EQ(hello->rails.size(), 2u);
  EXPECT_EQ(decode_ask(encode(Ask{77}))->key, 77u);
  Answer answer;
  answer.key = 78;
  answer.memory.address = 4096;
  answer.memory.bytes = 8192;
  answer.memory.rails = 1;
  answer.memory.keys[0] = {5, 6};
  const auto good = decode_answer(encode(answer));
  ASSERT_TRUE(good);
  EXPECT_EQ(good->memory.keys[0].shift, 6u);
  answer.status = Status::kStale;
  answer.reason = std::string(1000, 'x');
  const auto bad = decode_answer(encode(answer));
  ASSERT_TRUE(bad);
  EXPECT_EQ(bad->reason.size(), kMaxReasonBytes);
  const Address address{{"loopback:a", "ofi:shm"}, {9, 9, 9}};
  EXPECT_EQ(decode_address(encode(address))->kinds, address.kinds);
  EXPECT_EQ(decode_address(encode(address))->carrier, address.carrier);
}

TEST(RdmaWire, TheCoresMessagesAreNotTakenForOurs) {
  for (uint8_t type = 1; type < 64; ++type) {
    const std::vector<uint8_t> message{type, 1, 0, 0, 0, 0, 0, 0};
    EXPECT_FALSE(kind_of(message));
  }
  EXPECT_EQ(kind_of(encode(Ask{1})), MessageKind::kAsk);
  EXPECT_FALSE(kind_of({}));
}

TEST(RdmaWire, WhatIsCutOrTooLongIsRefused) {
  std::vector<uint8_t> ask = encode(Ask{1});
  ask.push_back(0);
  EXPECT_FALSE(decode_ask(ask));
  const std::vector<uint8_t> hello = encode_hello(some_engine());
  for (std::size_t bytes = 0; bytes < hello.size(); ++bytes)
    EXPECT_FALSE(decode_hello(std::span(hello).first(bytes))) << bytes;
  Answer answer;
  answer.status = static_cast<Status>(1);  // in progress is no answer
  EXPECT_FALSE(decode_answer(encode(answer)));
}

}  // namespace
}  // namespace towline::rdma
