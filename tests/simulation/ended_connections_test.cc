// An agent over tcp, and peers of it that are played by hand: what ends a connection, and what does not.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "agent/agent.h"
#include "agent/control_message.h"
#include "agent/link.h"
#include "metadata/blob/blob.h"
#include "transports/tcp/plugin.h"
#include "transports/tcp/test_support.h"

namespace towline {
namespace {

using testing::FakeAgent;
using testing::FakeLink;
using testing::FakePlan;

const FakeAgent::Settings kLocal = {{"tcp.listen", "127.0.0.1:0"}};

uint64_t id_of(const FakeLink& link) {
  const auto* ids =
      static_cast<const towline_connection_table_v1*>(towline_tcp_plugin()->query_table("connection", 1));
  return ids->id(link.connection);
}

class LinkEndingsTest : public ::testing::Test {
 protected:
  LinkEndingsTest() {
    AgentOptions options;
    options.name = "agent";
    options.hosted = false;
    options.workers = 2;
    options.listen = "127.0.0.1:0";
    options.backends = {"tcp"};
    options.config.set("tcp.listen", "127.0.0.1:0");
    options.config.set("log.level", "off");
    agent = Agent::create(std::move(options));
  }
  ~LinkEndingsTest() override { agent->close(); }

  [[nodiscard]] bool turn(std::vector<FakeAgent*> fakes, const std::function<bool()>& done) const {
    return testing::turn_until(fakes, [&] {
      if (done()) return true;
      agent->progress();
      return false;
    });
  }
  // `fake` connects to the agent's worker.
  FakeLink& connect(FakeAgent& fake, uint32_t worker = 0) const {
    const metadata::PeerMetadata metadata = metadata::decode(agent->metadata(nullptr));
    FakeLink& link = fake.connect(agent->identity(), metadata.backends.at(0).address, 20 * kSecondNs, worker);
    EXPECT_TRUE(turn({&fake}, [&] { return link.ups + link.downs != 0; }));
    EXPECT_EQ(link.ups, 1u) << link.text;
    return link;
  }
  static void ask_to_end(FakeAgent& fake, FakeLink& over, uint64_t id) {
    const ValueMessage message = make_value_message(ControlType::kEndConnection, id);
    EXPECT_EQ(fake.send(over, {reinterpret_cast<const char*>(&message), sizeof message}), Status::kOk);
  }
  static bool was_told_ended(const FakeLink& link, uint64_t id) {
    const ValueMessage wanted = make_value_message(ControlType::kConnectionEnded, id);
    const std::string_view bytes(reinterpret_cast<const char*>(&wanted), sizeof wanted);
    return std::find(link.messages.begin(), link.messages.end(), bytes) != link.messages.end();
  }

  std::shared_ptr<Agent> agent;
};

TEST_F(LinkEndingsTest, AConnectionOfAnotherWorkerIsEndedBeforeTheAnswer) {
  FakeAgent peer(towline_tcp_plugin(), "peer", kLocal, 2);
  FakeLink& old = connect(peer, 0);
  FakeLink& fresh = connect(peer, 1);
  const uint64_t id = id_of(old);
  ask_to_end(peer, fresh, id);
  ASSERT_TRUE(turn({&peer}, [&] { return was_told_ended(fresh, id); }));
  EXPECT_EQ(agent->find_peer("peer")->find_connection(id), nullptr);
  ASSERT_TRUE(turn({&peer}, [&] { return old.downs == 1; }));
  EXPECT_EQ(fresh.downs, 0u);
}

TEST_F(LinkEndingsTest, OneThatIsGoneAlreadyIsAnsweredAtOnce) {
  FakeAgent peer(towline_tcp_plugin(), "peer", kLocal);
  FakeLink& link = connect(peer);
  ask_to_end(peer, link, 12345);
  EXPECT_TRUE(turn({&peer}, [&] { return was_told_ended(link, 12345); }));
  EXPECT_EQ(link.downs, 0u);
}

TEST_F(LinkEndingsTest, NobodyEndsAConnectionOfAnotherIncarnation) {
  FakeAgent peer(towline_tcp_plugin(), "peer", kLocal);
  FakeAgent stranger(towline_tcp_plugin(), "stranger", kLocal);
  const FakeLink& link = connect(peer);
  FakeLink& other = connect(stranger);
  const uint64_t id = id_of(link);
  ask_to_end(stranger, other, id);
  ASSERT_TRUE(turn({&peer, &stranger}, [&] { return was_told_ended(other, id); }));
  EXPECT_NE(agent->find_peer("peer")->find_connection(id), nullptr);
  EXPECT_EQ(link.downs, 0u);
}

TEST_F(LinkEndingsTest, NoConnectionHasTheNumberZero) {
  FakeAgent peer(towline_tcp_plugin(), "peer", kLocal);
  FakeLink& link = connect(peer);
  ask_to_end(peer, link, 0);
  EXPECT_TRUE(turn({&peer}, [&] { return link.downs == 1; }));
}

// The peer accepted it, wrote, and gave it up before the agent knew that it is up.
TEST_F(LinkEndingsTest, OneThatWasEndedBeforeItCameUpPlacesNothing) {
  constexpr uint64_t kBytes = 4096;
  std::vector<uint8_t> memory(kBytes);
  const auto region = agent->own_regions().add(
      memory.data(), kBytes,
      {sizeof(towline_region_options_t), TOWLINE_ACCESS_ALL, 0, 0, 0, nullptr, nullptr});
  FakeAgent peer(towline_tcp_plugin(), "peer", kLocal, 2);
  FakeLink& talk = connect(peer, 0);

  metadata::PeerMetadata metadata;
  metadata.identity.name = "peer";
  metadata.identity.incarnation = {peer.identity.incarnation[0], peer.identity.incarnation[1]};
  metadata.identity.workers = 2;
  metadata.backends.push_back({"tcp", "1", peer.address()});
  metadata.partial = true;
  Peer& known = agent->add_peer(metadata::encode(metadata));
  Worker& second = *agent->workers()[1];
  Link& dialled = known.link(*agent->backends().find("tcp"), 1);
  {
    const Worker::Guard guard(second);
    dialled.connect(UINT64_MAX);
  }
  const auto half_turn = [&](const std::function<bool()>& done) {
    return testing::turn_until({&peer}, [&] {
      agent->workers()[0]->drive();
      return done();
    });
  };
  ASSERT_TRUE(turn({&peer}, [&] { return peer.accepted_link() != nullptr; }));
  ASSERT_NE(dialled.state(), Link::State::kUp);
  FakeLink& up_there = *peer.accepted_link();
  std::vector<uint8_t> bytes(kBytes, 7);
  FakePlan plan(region->ref.key);
  plan.add(bytes.data(), memory.data(), kBytes);
  towline_prepared* write = peer.prepare(up_there, plan.plan(), TOWLINE_WRITE);
  ASSERT_EQ(peer.submit(write, 1, kBytes), Status::kInProgress);
  const uint64_t id = id_of(up_there);
  peer.turn();
  ask_to_end(peer, talk, id);
  // The other worker does not look meanwhile.
  ASSERT_TRUE(half_turn([&] { return was_told_ended(talk, id); }));

  ASSERT_TRUE(turn({&peer}, [&] { return up_there.downs == 1; }));
  for (int i = 0; i < 100; ++i) agent->progress();
  EXPECT_EQ(std::accumulate(memory.begin(), memory.end(), uint64_t{0}), 0u);
  EXPECT_NE(dialled.state(), Link::State::kUp);
}

}  // namespace
}  // namespace towline
