// The socket of urgent parts, and peers that do not know of it.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>

#include "base/copy/crc32c.h"
#include "base/os/socket_address.h"
#include "framing/wire.h"
#include "transports/tcp/packet_reader.h"
#include "transports/tcp/tcp_fixture.h"

namespace towline::tcp {
namespace {

constexpr uint64_t kPageBytes = 4096;

class ExpressSocket : public TcpTest {
 protected:
  void SetUp() override {
    open();
    make_memory(kPageBytes);
  }
  // An urgent part of one page.
  Status submit(FakeAgent& agent, FakeLink& link, uint32_t op, uint64_t cookie) {
    plans_.push_back(std::make_unique<FakePlan>(key));
    plans_.back()->add(local.data(), remote.data(), kPageBytes);
    towline_prepared* const prepared = agent.prepare(link, plans_.back()->plan(), op);
    return agent.submit(prepared, cookie, kPageBytes, {}, TOWLINE_SUBMIT_URGENT);
  }

  std::vector<std::unique_ptr<FakePlan>> plans_;
};

TEST_F(ExpressSocket, ComesUpWhenThereAreUrgentParts) {
  FakeLink& link = connected();
  EXPECT_NE(describe(*a, link).find(R"("lanes": 1,)"), std::string::npos);
  ASSERT_EQ(submit(*a, link, TOWLINE_WRITE, 1), Status::kInProgress);
  ASSERT_TRUE(
      turn([&] { return a->ended(1) && describe(*a, link).find(R"("lanes": 2,)") != std::string::npos; }));
  ASSERT_TRUE(
      turn([&] { return describe(*b, *b->accepted_link()).find(R"("lanes": 2,)") != std::string::npos; }));
  for (uint64_t cookie = 2; cookie < 20; ++cookie) {
    ASSERT_EQ(submit(*a, link, cookie % 2 == 0 ? TOWLINE_WRITE : TOWLINE_READ, cookie), Status::kInProgress);
    ASSERT_TRUE(turn([&] { return a->ended(cookie); }));
    EXPECT_EQ(a->outcome(cookie), Status::kOk);
  }
  EXPECT_EQ(remote, local);
  EXPECT_NE(describe(*a, link).find(R"("lanes": 2,)"), std::string::npos) << "one is enough";
}

TEST_F(ExpressSocket, ComesUpForTheAcceptorsUrgentPartsToo) {
  FakeLink& link = connected();
  key = a->add(remote.data(), remote.size());
  ASSERT_TRUE(turn([&] { return b->accepted_link() != nullptr; }));
  ASSERT_EQ(submit(*b, *b->accepted_link(), TOWLINE_WRITE, 1), Status::kInProgress);
  ASSERT_TRUE(
      turn([&] { return b->ended(1) && describe(*a, link).find(R"("lanes": 2,)") != std::string::npos; }));
}

// A hello of a release before features: no such field, minor version 0.
std::vector<uint8_t> as_older(std::vector<uint8_t> packet) {
  packet.resize(packet.size() - 2 * sizeof(uint32_t));
  packet[5] = 0;
  const auto bytes = static_cast<uint16_t>(packet.size() + sizeof(uint32_t));
  std::memcpy(packet.data() + 6, &bytes, sizeof bytes);
  const uint32_t checksum = crc32c(packet);
  const auto* const raw = reinterpret_cast<const uint8_t*>(&checksum);
  packet.insert(packet.end(), raw, raw + sizeof checksum);
  return packet;
}

// Blocks for as long as it takes `agent` to send it.
framing::FrameHeader next_header(int fd, FakeAgent& agent) {
  std::array<uint8_t, framing::kHeaderBytes> bytes{};
  EXPECT_TRUE(turn_until({&agent}, [&] {
    return recv(fd, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_PEEK) ==
           static_cast<ssize_t>(bytes.size());
  }));
  framing::FrameHeader header;
  EXPECT_EQ(framing::decode_header(bytes.data(), header), nullptr);
  return header;
}

TEST_F(ExpressSocket, AnOlderAcceptorIsSentNeitherFlagsNorASecondSocket) {
  const SocketAddress any = resolve(parse_endpoint("127.0.0.1:0"), soon()).front();
  const UniqueFd listener(socket(any.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  ASSERT_EQ(::bind(listener.get(), any.get(), any.size()), 0);
  ASSERT_EQ(::listen(listener.get(), 8), 0);
  FakeLink& link = a->connect(b->identity, address_of({SocketAddress::local_of(listener.get()).text()}));
  Stream old;
  PacketReader reader{kHelloMagic};
  ASSERT_TRUE(turn_until({a.get()}, [&] {
    if (!old.valid())
      old = Stream::accepted(UniqueFd(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC)));
    return old.valid() && reader.receive(old) == PacketReader::State::kWhole;
  }));
  Reply reply;
  reply.incarnation = {b->identity.incarnation[0], b->identity.incarnation[1]};
  reply.name = "b";
  const std::vector<uint8_t> packet = as_older(pack(reply));
  ASSERT_EQ(old.write(packet.data(), packet.size()).bytes, packet.size());
  ASSERT_TRUE(turn_until({a.get()}, [&] { return link.ups + link.downs != 0; }));
  ASSERT_EQ(link.ups, 1u) << link.text;
  ASSERT_EQ(submit(*a, link, TOWLINE_READ, 1), Status::kInProgress);
  EXPECT_EQ(next_header(old.fd(), *a).flags, 0);
  for (int i = 0; i < 100; ++i) a->turn();
  EXPECT_LT(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC), 0) << "a second socket came";
}

TEST_F(ExpressSocket, AnOlderConnectorIsSentNoFlags) {
  const SocketAddress to = resolve(parse_endpoint(endpoints_of(*b)[0]), soon()).front();
  Stream old;
  ASSERT_EQ(Stream::connect(to, soon(), old), 0);
  Hello hello;
  hello.target = {b->identity.incarnation[0], b->identity.incarnation[1]};
  hello.connection = {1, 2};
  hello.self = a->identity;
  hello.name = "older";
  const std::vector<uint8_t> packet = as_older(pack(hello));
  ASSERT_EQ(old.write(packet.data(), packet.size()).bytes, packet.size());
  PacketReader reader{kReplyMagic};
  ASSERT_TRUE(turn_until({b.get()}, [&] { return reader.receive(old) == PacketReader::State::kWhole; }));
  ASSERT_TRUE(turn_until({b.get()}, [&] { return b->accepted_link() != nullptr; }));
  ASSERT_EQ(submit(*b, *b->accepted_link(), TOWLINE_READ, 1), Status::kInProgress);
  EXPECT_EQ(next_header(old.fd(), *b).flags, 0);
}

}  // namespace
}  // namespace towline::tcp
