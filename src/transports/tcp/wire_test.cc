#include "transports/tcp/wire.h"
#include "transports/tcp/packet_reader.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/os/unique_fd.h"

namespace towline::tcp {
namespace {

Hello example() {
  Hello hello;
  hello.target = {1, 2};
  hello.connection = {3, 4};
  hello.lane = 5;
  hello.worker = 6;
  hello.self = {sizeof hello.self, {7, 8}, {9, 10}, 11, 12, 13, 14, 1, 15, nullptr};
  hello.name = std::string(kMaxNameBytes, '\xfe');
  return hello;
}

TEST(Handshake, GivesBackWhatWasPacked) {
  Hello hello;
  const std::vector<uint8_t> packet = pack(example());
  ASSERT_EQ(unpack(packet, hello), nullptr);
  EXPECT_EQ(pack(hello), packet);
  EXPECT_STREQ(hello.identity().name, example().name.c_str());
  Reply reply;
  ASSERT_EQ(unpack(pack(Reply{-17, {1, 2}, "b", "no\nsuch"}), reply), nullptr);
  EXPECT_EQ(reply.status, -17);
  EXPECT_EQ(reply.text, "no?such");
  const std::string longest(kMaxReplyText, 'x');
  ASSERT_EQ(unpack(pack(Reply{0, {1, 2}, example().name, longest + "more"}), reply), nullptr);
  EXPECT_EQ(reply.text, longest);
}

TEST(Handshake, RefusesTruncationAndEveryFlippedBit) {
  std::vector<uint8_t> packet = pack(example());
  Hello hello;
  for (std::size_t bytes = 0; bytes < packet.size(); ++bytes) {
    EXPECT_NE(unpack(std::span(packet).first(bytes), hello), nullptr) << bytes;
  }
  for (std::size_t bit = 0; bit < packet.size() * 8; ++bit) {
    packet[bit / 8] ^= static_cast<uint8_t>(1u << bit % 8);
    EXPECT_NE(unpack(packet, hello), nullptr) << bit;
    packet[bit / 8] ^= static_cast<uint8_t>(1u << bit % 8);
  }
}

TEST(LandingTokens, SayHowLargeAFrameMayBe) {
  const std::vector<uint8_t> token = pack(LandingToken{1 << 20});
  LandingToken read;
  ASSERT_EQ(unpack(token, read), nullptr);
  EXPECT_EQ(read.most_frame_bytes, 1u << 20);
  std::vector<uint8_t> later = token;
  later.front() = 2;
  later.push_back(7);
  EXPECT_EQ(unpack(later, read), nullptr) << "a later version may say more";
  for (std::size_t bytes = 0; bytes < token.size(); ++bytes)
    EXPECT_NE(unpack(std::span(token).first(bytes), read), nullptr) << bytes;
  later.front() = 0;
  EXPECT_NE(unpack(later, read), nullptr);
  EXPECT_NE(unpack(pack(LandingToken{0}), read), nullptr);
}

TEST(Handshake, RefusesFieldsThatCanNotBe) {
  const auto problem = [](auto&& change) {
    Hello hello = example();
    change(hello);
    Hello out;
    return unpack(pack(hello), out) != nullptr;
  };
  EXPECT_TRUE(problem([](Hello& h) { h.name.clear(); }));
  EXPECT_TRUE(problem([](Hello& h) { h.name = std::string("a\0b", 3); }));
  EXPECT_TRUE(problem([](Hello& h) { h.connection = {}; }));
  EXPECT_TRUE(problem([](Hello& h) { h.lane = kMaxLanes; }));
  EXPECT_TRUE(problem([](Hello& h) { h.self.workers = 0; }));
  EXPECT_TRUE(problem([](Hello& h) { h.self.incarnation[0] = h.self.incarnation[1] = 0; }));
  Reply reply;
  EXPECT_NE(unpack(pack(Reply{1, {1, 2}, "b", ""}), reply), nullptr);
  EXPECT_NE(unpack(pack(Reply{-1000, {1, 2}, "b", ""}), reply), nullptr);
}

TEST(PacketReader, ReadsOnePacketByteByByteAndNotOneMore) {
  int fds[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
  Stream near = Stream::accepted(UniqueFd(fds[0]));
  const UniqueFd far(fds[1]);
  const std::vector<uint8_t> packet = pack(example());
  PacketReader reader(kHelloMagic);
  for (std::size_t i = 0; i < packet.size(); ++i) {
    EXPECT_EQ(reader.receive(near), PacketReader::State::kMore);
    ASSERT_EQ(write(far.get(), &packet[i], 1), 1);
  }
  ASSERT_EQ(write(far.get(), "next", 4), 4);
  EXPECT_EQ(reader.receive(near), PacketReader::State::kWhole);
  EXPECT_TRUE(std::equal(packet.begin(), packet.end(), reader.packet().begin(), reader.packet().end()));
  char next[5] = "";
  EXPECT_EQ(read(near.fd(), next, 4), 4);
  EXPECT_STREQ(next, "next");
}

TEST(PacketReader, SeesGarbageAtTheFirstWrongByteAndTheEnd) {
  const auto state_after = [](std::string_view bytes, bool close) {
    int fds[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    Stream near = Stream::accepted(UniqueFd(fds[0]));
    UniqueFd far(fds[1]);
    EXPECT_EQ(write(far.get(), bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
    if (close) far.reset();
    PacketReader reader(kHelloMagic);
    return reader.receive(near);
  };
  EXPECT_EQ(state_after("G", false), PacketReader::State::kGarbage);
  EXPECT_EQ(state_after("TWT", false), PacketReader::State::kMore);
  EXPECT_EQ(state_after("TWT", true), PacketReader::State::kClosed);
  EXPECT_EQ(state_after(std::string_view("TWTH\1\0\0\0", 8), false), PacketReader::State::kGarbage);
  EXPECT_EQ(state_after(std::string_view("TWTH\1\0\xff\xff", 8), false), PacketReader::State::kGarbage);
}

TEST(Address, GivesBackEndpointsAndLeavesOutWhatDoesNotFit) {
  std::vector<std::string> endpoints = {"10.0.0.7:1", "unix:/x"};
  std::vector<std::string> read;
  ASSERT_EQ(unpack_address(pack_address(endpoints), read), nullptr);
  EXPECT_EQ(read, endpoints);
  endpoints.assign(100, std::string(40, 'x'));
  const std::vector<uint8_t> packed = pack_address(endpoints);
  EXPECT_LE(packed.size(), kMaxAddressBytes);
  read.clear();
  EXPECT_EQ(unpack_address(packed, read), nullptr);
  EXPECT_GT(read.size(), 20u);
}

}  // namespace
}  // namespace towline::tcp
