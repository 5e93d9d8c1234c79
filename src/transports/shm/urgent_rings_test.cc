// The rings of urgent parts, and peers that do not know of them.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "framing/wire.h"
#include "transports/shm/packet_socket.h"
#include "transports/shm/ring_memory.h"
#include "transports/shm/test_support.h"
#include "transports/shm/wire.h"

namespace towline::shm {
namespace {

using testing::Pair;
using testing::pattern;
using transport_test::TestAgent;
using transport_test::TestLink;
using transport_test::TestPlan;
using transport_test::turn_until;

TEST(ShmExpress, UrgentPartsOverTheRingGetRingsOfTheirOwn) {
  Pair pair({{"tuning.shm.paths", "ring"}}, {{"tuning.shm.paths", "ring"}});
  std::vector<uint8_t> local = pattern(4096, 3);
  std::vector<uint8_t> remote(local.size());
  const auto& region = pair.b.add(remote.data(), remote.size());
  auto imported = pair.import(region.ref);
  TestPlan plan(pair.a, TOWLINE_WRITE);
  plan.remote(region.ref, imported.import);
  plan.add(local.data(), region.ref.address, 4096);
  ASSERT_EQ(plan.prepare(*pair.to_b), Status::kOk);
  ASSERT_EQ(plan.submit(1, "first", TOWLINE_SUBMIT_URGENT), Status::kInProgress);
  const auto has_express = [](TestAgent& agent, TestLink& link) {
    return agent.describe(link).find("express ring") != std::string::npos;
  };
  ASSERT_TRUE(pair.turn(
      [&] { return pair.a.ended(1) && has_express(pair.a, *pair.to_b) && has_express(pair.b, *pair.to_a); }));
  ASSERT_EQ(plan.submit(2, "second", TOWLINE_SUBMIT_URGENT), Status::kInProgress);
  ASSERT_TRUE(pair.turn([&] { return pair.a.ended(2) && pair.to_a->messages.size() == 2; }));
  EXPECT_EQ(remote, local);
  EXPECT_EQ(pair.to_a->messages.back(), "second");
}

// A peer of the test's own, which has said hello.
class RawPeer {
 public:
  explicit RawPeer(TestAgent& agent, uint16_t version) : rings(RingMemory::create(64 << 10, memory_)) {
    Hello hello;
    std::copy_n(agent.identity().incarnation, 2, hello.target);
    hello.identity = agent.identity();
    hello.identity.incarnation[0] ^= 1;
    hello.name = "visitor";
    hello.ring_bytes = 64 << 10;
    std::vector<uint8_t> packet = encode(hello);
    if (version < 3) {
      packet[4] = static_cast<uint8_t>(version);
      packet.resize(packet.size() - sizeof(uint32_t));
    }
    socket = make_socket();
    EXPECT_EQ(connect_to(socket.get(), *decode_address(agent.address())), 0);
    const int fd = memory_.get();
    EXPECT_EQ(send_packet(socket.get(), packet, {&fd, 1}), Status::kOk);
    EXPECT_TRUE(turn_until({&agent}, [&] { return agent.links.size() == 1; }));
  }

 private:
  UniqueFd memory_;

 public:
  RingMemory rings;
  UniqueFd socket;
};

TEST(ShmExpress, AnOlderPeerIsSentNoFlagsAndOffersNothing) {
  for (const uint16_t version : {2, 3}) {
    TestAgent agent(towline_shm_plugin(), "a", {{"tuning.shm.paths", "ring"}});
    const RawPeer visitor(agent, version);
    std::vector<uint8_t> local(4096);
    towline_region_ref theirs = {};
    theirs.key = 77;
    theirs.address = 4096;
    theirs.bytes = 1 << 20;
    theirs.kind = TOWLINE_MEMORY_DRAM;
    theirs.access = TOWLINE_ACCESS_ALL;
    TestAgent::Imported imported;
    EXPECT_TRUE(turn_until({&agent}, [&] {
      agent.import_once(*agent.links.front(), theirs, imported);
      return imported.status != Status::kAgain;
    }));
    TestPlan plan(agent, TOWLINE_READ);
    plan.remote(theirs, imported.import);
    plan.add(local.data(), theirs.address, 4096);
    ASSERT_EQ(plan.prepare(*agent.links.front()), Status::kOk);
    ASSERT_EQ(plan.submit(1, "", TOWLINE_SUBMIT_URGENT), Status::kInProgress);
    agent.turn();
    framing::FrameHeader header;
    ASSERT_EQ(framing::decode_header(visitor.rings.incoming().data.data(), header), nullptr);
    EXPECT_EQ(header.flags, version < 3 ? 0 : framing::kFlagUrgent);
  }
}

TEST(ShmExpress, RingsThatAreOfferedWithoutMemoryOrTwiceBreakTheConnection) {
  for (const bool twice : {false, true}) {
    TestAgent agent(towline_shm_plugin(), "a");
    const RawPeer visitor(agent, 3);
    UniqueFd memory;
    (void)RingMemory::create(kExpressRingBytes, memory);
    const int fd = memory.get();
    const auto offer = [&](bool with_memory) {
      ASSERT_EQ(send_packet(visitor.socket.get(), encode_bare(PacketType::kExpress),
                            {&fd, with_memory ? size_t{1} : size_t{0}}),
                Status::kOk);
    };
    TestLink& link = *agent.links.front();
    offer(twice);
    if (twice) {
      EXPECT_TRUE(turn_until({&agent},
                             [&] { return agent.describe(link).find("express ring") != std::string::npos; }));
      offer(true);
    }
    EXPECT_TRUE(turn_until({&agent}, [&] { return link.down; }));
    EXPECT_EQ(link.status, Status::kProtocol) << link.text;
  }
}

}  // namespace
}  // namespace towline::shm
