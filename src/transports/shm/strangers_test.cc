// Peers that do not keep to the rules: garbage, silence, memory that is not what it should be.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/os/memfd.h"
#include "transports/shm/packet_socket.h"
#include "transports/shm/ring_memory.h"
#include "transports/shm/test_support.h"

namespace towline::shm {
namespace {

using transport_test::TestAgent;
using transport_test::TestLink;
using transport_test::turn_until;

UniqueFd call(TestAgent& agent) {
  const auto address = decode_address(agent.address());
  UniqueFd socket = make_socket();
  EXPECT_EQ(connect_to(socket.get(), *address), 0);
  return socket;
}

Hello hello_for(TestAgent& agent) {
  Hello hello;
  std::copy_n(agent.identity().incarnation, 2, hello.target);
  hello.identity = agent.identity();
  hello.identity.incarnation[0] ^= 1;
  hello.name = "stranger";
  hello.ring_bytes = 64 << 10;
  return hello;
}

// The agent's answer; nullopt: it closed the connection without one.
std::optional<Refuse> answer_to(TestAgent& agent, const std::vector<uint8_t>& packet, std::vector<int> fds) {
  const UniqueFd socket = call(agent);
  EXPECT_EQ(send_packet(socket.get(), packet, fds), Status::kOk);
  Packet answer;
  Status status = Status::kAgain;
  EXPECT_TRUE(turn_until({&agent}, [&] {
    status = receive_packet(socket.get(), answer);
    return status != Status::kAgain;
  }));
  return status == Status::kOk ? decode_refuse(answer.span()) : std::nullopt;
}

TEST(ShmStrangers, GarbageIsHungUpOnAndOthersAreServed) {
  TestAgent agent(towline_shm_plugin(), "a");
  EXPECT_FALSE(answer_to(agent, {1, 2, 3}, {}));
  EXPECT_FALSE(answer_to(agent, std::vector<uint8_t>(900, 0xff), {}));
  EXPECT_FALSE(answer_to(agent, std::vector<uint8_t>(5000, 0), {}));
  std::vector<uint8_t> cut = encode(hello_for(agent));
  cut.resize(60);
  EXPECT_EQ(answer_to(agent, cut, {})->status, Status::kProtocol);
  // So many say nothing at all that the first are given up.
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 100; ++i) {
    silent.push_back(call(agent));
    agent.turn();
  }
  TestAgent other(towline_shm_plugin(), "b");
  TestLink& link = other.connect(agent.identity(), agent.address());
  EXPECT_TRUE(turn_until({&agent, &other}, [&] { return link.up; }));
}

TEST(ShmStrangers, AVisitorWithoutADescriptorForItIsTurnedAway) {
  Address address;
  address.name = "towline-test-" + std::to_string(getpid());
  const UniqueFd listener = listen_on(address);
  UniqueFd spare = open_spare();
  int error = 0;
  EXPECT_FALSE(accept_visitor(listener.get(), spare, error));
  EXPECT_EQ(error, EAGAIN);
  const UniqueFd visitor = make_socket();
  ASSERT_EQ(connect_to(visitor.get(), address), 0);
  rlimit before{};
  getrlimit(RLIMIT_NOFILE, &before);
  const rlimit full{static_cast<rlim_t>(UniqueFd{dup(spare.get())}.get()), before.rlim_max};
  setrlimit(RLIMIT_NOFILE, &full);
  EXPECT_FALSE(accept_visitor(listener.get(), spare, error));
  EXPECT_EQ(error, EMFILE);
  EXPECT_FALSE(accept_visitor(listener.get(), spare, error));
  EXPECT_EQ(error, EAGAIN) << "nobody else is there";
  setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_TRUE(spare);
  Packet packet;
  EXPECT_EQ(receive_packet(visitor.get(), packet), Status::kClosed);
  const UniqueFd next = make_socket();
  ASSERT_EQ(connect_to(next.get(), address), 0);
  EXPECT_TRUE(accept_visitor(listener.get(), spare, error));
}

TEST(ShmStrangers, RingMemoryThatIsNotWhatItShouldBeIsRefused) {
  TestAgent agent(towline_shm_plugin(), "a");
  const std::vector<uint8_t> hello = encode(hello_for(agent));
  EXPECT_EQ(answer_to(agent, hello, {})->status, Status::kProtocol);
  UniqueFd good;
  (void)RingMemory::create(64 << 10, good);
  const uint64_t bytes = file_bytes(good.get());
  const UniqueFd unsealed = create_memfd("bad", bytes, {.seal_size = false});
  EXPECT_TRUE(answer_to(agent, hello, {unsealed.get()}));
  const UniqueFd small = create_memfd("bad", 4096);
  EXPECT_TRUE(answer_to(agent, hello, {small.get()}));
  const UniqueFd large = create_memfd("bad", 2 * bytes);
  EXPECT_TRUE(answer_to(agent, hello, {large.get()}));
  const UniqueFd pipe_end = make_socket();
  EXPECT_TRUE(answer_to(agent, hello, {pipe_end.get()}));
  Hello odd = hello_for(agent);
  odd.ring_bytes = 12345;
  EXPECT_TRUE(answer_to(agent, encode(odd), {good.get()}));
  odd = hello_for(agent);
  odd.target[0] ^= 1;
  EXPECT_EQ(answer_to(agent, encode(odd), {good.get()})->status, Status::kPeerRestarted);
  EXPECT_TRUE(agent.links.empty());
}

TEST(ShmStrangers, AConnectionThatTurnsToGarbageIsBrokenAndNothingElse) {
  TestAgent agent(towline_shm_plugin(), "a");
  UniqueFd memory;
  RingMemory rings = RingMemory::create(64 << 10, memory);
  const UniqueFd socket = call(agent);
  ASSERT_EQ(send_packet(socket.get(), encode(hello_for(agent)), std::vector<int>{memory.get()}), Status::kOk);
  ASSERT_TRUE(turn_until({&agent}, [&] { return agent.links.size() == 1; }));
  TestLink& link = *agent.links.front();
  // Positions that cannot be.
  rings.outgoing().header->positions.written.store(1ull << 60);
  EXPECT_TRUE(turn_until({&agent}, [&] { return link.down; }));
  EXPECT_EQ(link.status, Status::kProtocol) << link.text;

  UniqueFd second_memory;
  (void)RingMemory::create(64 << 10, second_memory);
  const UniqueFd second = call(agent);
  ASSERT_EQ(send_packet(second.get(), encode(hello_for(agent)), std::vector<int>{second_memory.get()}),
            Status::kOk);
  ASSERT_TRUE(turn_until({&agent}, [&] { return agent.links.size() == 2; }));
  ASSERT_EQ(send_packet(second.get(), encode(hello_for(agent)), {}), Status::kOk);  // a second hello
  EXPECT_TRUE(turn_until({&agent}, [&] { return agent.links.back()->down; }));
  EXPECT_EQ(agent.links.back()->status, Status::kProtocol);
}

TEST(ShmStrangers, AConnectKeepsItsDeadline) {
  // Listens as an agent would, and never answers; then does not even accept.
  const uint64_t incarnation[2] = {0x1234, static_cast<uint64_t>(getpid())};
  const Address address = socket_name(incarnation, "");
  UniqueFd listener = listen_on(address);
  TestAgent agent(towline_shm_plugin(), "a");
  towline_identity nobody = agent.identity();
  std::copy_n(incarnation, 2, nobody.incarnation);
  TestLink& silent = agent.connect(nobody, encode(address), 50 * kMillisecondNs);
  while (!silent.down) agent.turn(10);
  EXPECT_EQ(silent.status, Status::kTimedOut) << silent.text;

  ASSERT_EQ(listen(listener.get(), 0), 0);
  std::vector<UniqueFd> crowd;
  for (int i = 0; i < 8; ++i) {
    crowd.push_back(make_socket());
    connect_to(crowd.back().get(), address);
  }
  TestLink& crowded = agent.connect(nobody, encode(address), 50 * kMillisecondNs);
  while (!crowded.down) agent.turn(10);
  EXPECT_EQ(crowded.status, Status::kTimedOut) << crowded.text;

  TestLink& ended = agent.connect(nobody, encode(address), 10 * kSecondNs);
  listener.reset();
  crowd.clear();
  EXPECT_TRUE(turn_until({&agent}, [&] { return ended.down; }));
  EXPECT_EQ(ended.status, Status::kUnreachable) << ended.text;
  EXPECT_EQ(agent.connect(nobody, encode(address)).status, Status::kUnreachable);
}

}  // namespace
}  // namespace towline::shm
