#include "transports/shm/wire.h"

#include <gtest/gtest.h>

#include "base/random.h"

namespace towline::shm {
namespace {

Hello example_hello() {
  Hello hello;
  hello.target[0] = 1;
  hello.target[1] = 2;
  hello.identity = {sizeof hello.identity, {3, 4}, {5, 6}, 7, 8, 9, 10, 1, 4, nullptr};
  hello.name = "prefill-0";
  hello.worker = 3;
  hello.ring_bytes = 1 << 20;
  hello.proof = {11, 12};
  hello.connection = 13;
  return hello;
}

TEST(ShmWire, PacketsComeBackAsTheyWere) {
  const auto hello = decode_hello(encode(example_hello()));
  ASSERT_TRUE(hello);
  EXPECT_EQ(hello->target[1], 2u);
  EXPECT_EQ(hello->identity.incarnation[0], 3u);
  EXPECT_EQ(hello->identity.network_namespace, 10u);
  EXPECT_EQ(hello->worker, 3u);
  EXPECT_EQ(hello->proof.probe_address, 12u);
  EXPECT_STREQ(hello->as_identity().name, "prefill-0");
  EXPECT_EQ(hello->connection, 13u);

  const auto welcome = decode_welcome(encode(Welcome{{1, 2}, 5, {6, 7}}));
  ASSERT_TRUE(welcome);
  EXPECT_EQ(welcome->worker, 5u);
  const auto refuse = decode_refuse(encode(Refuse{Status::kPermissionDenied, "no"}));
  ASSERT_TRUE(refuse);
  EXPECT_EQ(refuse->status, Status::kPermissionDenied);
  EXPECT_EQ(refuse->text, "no");
  const auto answer = decode_descriptor_answer(encode(DescriptorAnswer{1, Status::kOk, 2, 3, 4, ""}));
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->file_offset, 4u);
  const auto address = decode_address(encode(Address{false, "/tmp/x"}));
  ASSERT_TRUE(address);
  EXPECT_FALSE(address->abstract);
  EXPECT_EQ(address->name, "/tmp/x");
}

TEST(ShmWire, EveryTruncationIsRefused) {
  for (const std::vector<uint8_t>& packet :
       {encode(example_hello()), encode(Welcome{}), encode(Refuse{Status::kIo, "text"}),
        encode(DescriptorRequest{1, 2}), encode(DescriptorAnswer{1, Status::kStale, 0, 0, 0, "why"})}) {
    for (size_t bytes = 0; bytes < packet.size(); ++bytes) {
      const std::span<const uint8_t> cut{packet.data(), bytes};
      EXPECT_FALSE(decode_hello(cut) || decode_welcome(cut) || decode_refuse(cut) ||
                   decode_descriptor_request(cut) || decode_descriptor_answer(cut));
    }
    std::vector<uint8_t> longer = packet;
    longer.push_back(0);
    EXPECT_FALSE(decode_hello(longer) || decode_welcome(longer) || decode_refuse(longer) ||
                 decode_descriptor_request(longer) || decode_descriptor_answer(longer));
  }
}

TEST(ShmWire, ALaterVersionMayAppendFields) {
  std::vector<uint8_t> packet = encode(DescriptorRequest{1, 2});
  packet[4] = kVersion + 1;
  packet.push_back(99);
  EXPECT_TRUE(decode_descriptor_request(packet));
  EXPECT_EQ(packet_version(packet), kVersion + 1);
}

TEST(ShmWire, AHelloOfTheFirstVersionNamesNoConnection) {
  std::vector<uint8_t> packet = encode(example_hello());
  packet[4] = 1;
  EXPECT_FALSE(decode_hello(packet)) << "it has a field that version 1 does not have";
  packet.resize(packet.size() - sizeof(uint64_t) - sizeof(uint32_t));
  const auto hello = decode_hello(packet);
  ASSERT_TRUE(hello);
  EXPECT_EQ(hello->name, "prefill-0");
  EXPECT_EQ(hello->connection, 0u);
  EXPECT_EQ(hello->features, 0u);
}

TEST(ShmWire, OnlyThirdVersionsHaveFeatures) {
  EXPECT_EQ(decode_hello(encode(example_hello()))->features, framing::kFeatures);
  std::vector<uint8_t> packet = encode(example_hello());
  packet[4] = 2;
  packet.resize(packet.size() - sizeof(uint32_t));
  EXPECT_EQ(decode_hello(packet)->features, 0u);
  EXPECT_EQ(decode_welcome(encode(Welcome{}))->features, framing::kFeatures);
  packet = encode(Welcome{});
  packet[4] = 2;
  packet.resize(packet.size() - sizeof(uint32_t));
  EXPECT_EQ(decode_welcome(packet)->features, 0u);
}

TEST(ShmWire, WorkersAndNamesThatMakeNoSenseAreRefused) {
  Hello hello = example_hello();
  hello.worker = 4;
  EXPECT_FALSE(decode_hello(encode(hello)));
  hello = example_hello();
  hello.name = std::string("a\0b", 3);
  EXPECT_FALSE(decode_hello(encode(hello)));
  EXPECT_FALSE(decode_address(encode(Address{true, std::string(108, 'x')})));
  EXPECT_FALSE(decode_address(encode(Address{true, ""})));
}

TEST(ShmWire, FlippedBitsNeverCrashADecoder) {
  Random random(7);
  const std::vector<uint8_t> good = encode(example_hello());
  for (int i = 0; i < 20'000; ++i) {
    std::vector<uint8_t> packet = good;
    for (int flips = 0; flips < 3; ++flips)
      packet[random.below(packet.size())] ^= uint8_t(1u << random.below(8));
    packet.resize(random.below(packet.size() + 1));
    (void)decode_hello(packet);
    (void)decode_welcome(packet);
    (void)decode_refuse(packet);
    (void)decode_descriptor_answer(packet);
    (void)decode_address(packet);
  }
}

}  // namespace
}  // namespace towline::shm
