#include "fabric/messages.h"

#include <gtest/gtest.h>

#include <algorithm>

#include <cstring>

namespace towline::fabric {
namespace {

ControlMessage control(ControlType type) {
  ControlMessage message;
  message.type = type;
  message.from = {1, 2};
  message.to = {3, 4};
  message.connection = 5;
  message.record_bytes = 256;
  message.credits = 16;
  message.status = Status::kAgain;
  static constexpr uint8_t kEndpoint[] = {9, 8, 7};
  message.endpoint = kEndpoint;
  message.seen_base = 1000;
  message.seen_bits[3] = 0xf00d;
  return message;
}

TEST(FabricMessages, EveryControlMessageComesBackAsItWas) {
  for (int type = 1; type <= 7; ++type) {
    const ControlMessage message = control(static_cast<ControlType>(type));
    const ControlBytes bytes = encode(message);
    ASSERT_NE(bytes.size, 0u);
    const auto back = decode_control(bytes);
    ASSERT_TRUE(back) << type;
    EXPECT_TRUE(std::ranges::equal(std::span<const uint8_t>{encode(*back)}, std::span<const uint8_t>{bytes}));
    EXPECT_EQ(back->connection, 5u);
  }
}

TEST(FabricMessages, NoPrefixOfAMessageIsOne) {
  for (int type = 1; type <= 7; ++type) {
    ControlBytes bytes = encode(control(static_cast<ControlType>(type)));
    for (std::size_t length = 0; length < bytes.size; ++length)
      EXPECT_FALSE(decode_control({bytes.data.data(), length})) << type << " " << length;
    bytes.data[bytes.size++] = 0;
    EXPECT_FALSE(decode_control(bytes));
  }
}

TEST(FabricMessages, ValuesOutOfBoundsAreRefused) {
  ControlMessage message = control(ControlType::kConnect);
  const std::vector<uint8_t> long_endpoint(kMaxEndpointBytes + 1);
  message.endpoint = long_endpoint;
  EXPECT_FALSE(decode_control(encode(message)));
  message = control(ControlType::kConnect);
  message.initiator_rail = kMaxRails;
  EXPECT_FALSE(decode_control(encode(message)));
  message = control(ControlType::kPing);
  message.from = {};
  EXPECT_FALSE(decode_control(encode(message)));
  EngineAddress address{{1, 2}, {}};
  EXPECT_FALSE(decode_address(encode(address)));
  address.rails.resize(kMaxRails + 1);
  EXPECT_FALSE(decode_address(encode(address)));
  RemoteMemory memory;
  memory.rails = 1;
  memory.address = UINT64_MAX;
  memory.bytes = 2;
  EXPECT_FALSE(decode_memory(encode(memory)));
}

TEST(FabricMessages, AddressesAndMemoryComeBackAsTheyWere) {
  const EngineAddress address{{1, 2}, {{"ofi:shm", {1, 2, 3}}, {"loopback", {}}}};
  const auto back = decode_address(encode(address));
  ASSERT_TRUE(back);
  EXPECT_EQ(back->rails[0].kind, "ofi:shm");
  EXPECT_EQ(encode(*back), encode(address));
  RemoteMemory memory;
  memory.address = 4096;
  memory.bytes = 100;
  memory.writable = true;
  memory.rails = 2;
  memory.keys[1] = {7, uint64_t{0} - 4096};
  const auto there = decode_memory(encode(memory));
  ASSERT_TRUE(there);
  EXPECT_TRUE(there->writable && !there->readable);
  EXPECT_EQ(there->keys[1].shift, uint64_t{0} - 4096);
  EXPECT_TRUE(there->contains(4096, 100));
  EXPECT_FALSE(there->contains(4096, 101));
  EXPECT_FALSE(there->contains(4095, 1));
}

TEST(FabricMessages, RecordsWhoseLengthsOrFlagsDoNotFitAreRefused) {
  std::vector<uint8_t> bytes(sizeof(RecordHeader) + 5);
  RecordHeader header;
  const auto decode = [&] {
    std::memcpy(bytes.data(), &header, sizeof header);
    return decode_record(bytes).has_value();
  };
  header.flags = kRecordMessage;
  header.sequence = 1;
  header.message_bytes = 5;
  EXPECT_TRUE(decode());
  header.message_bytes = 6;
  EXPECT_FALSE(decode());
  header.message_bytes = 5;
  header.flags = kRecordCounts;
  EXPECT_FALSE(decode());
  header.flags = kRecordMessage | kRecordCredit;
  EXPECT_FALSE(decode());
  header.flags = 0x80;
  EXPECT_FALSE(decode());
  header.flags = kRecordMessage;
  header.sequence = 0;
  EXPECT_FALSE(decode());
  EXPECT_FALSE(decode_record({bytes.data(), 31}));
}

TEST(SequenceWindow, TakesEachNumberOnceInAnyOrder) {
  SequenceWindow window;
  EXPECT_TRUE(window.insert(2));
  EXPECT_FALSE(window.insert(2));
  EXPECT_EQ(window.base(), 1u);
  EXPECT_TRUE(window.insert(1));
  EXPECT_EQ(window.base(), 3u);
  EXPECT_FALSE(window.insert(1));
  EXPECT_TRUE(window.beyond(3 + SequenceWindow::kSpan));
  EXPECT_FALSE(window.insert(3 + SequenceWindow::kSpan));
  for (uint64_t number = 3 + SequenceWindow::kSpan - 1; number >= 3; --number)
    EXPECT_TRUE(window.insert(number));
  EXPECT_EQ(window.base(), 3 + SequenceWindow::kSpan);
  EXPECT_TRUE(window.seen(700));
  EXPECT_FALSE(window.seen(window.base()));
  const auto copy = SequenceWindow::from(window.base(), window.bits());
  EXPECT_TRUE(copy.seen(900));
}

TEST(SequenceWindow, FindsANumberByItsLowBits) {
  SequenceWindow window;
  for (uint64_t number = 1; number < 200'000; ++number) {
    ASSERT_EQ(window.widen(number & 0xffff, 16), number);
    ASSERT_EQ(window.widen((number + 1023) & 0xffff, 16), number + 1023);
    ASSERT_TRUE(window.insert(number));
  }
}

}  // namespace
}  // namespace towline::fabric
