// Peers of versions before and after tags, played by hand over tcp.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

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

class PeersOfOtherVersions : public ::testing::Test {
 protected:
  PeersOfOtherVersions() {
    AgentOptions options;
    options.name = "agent";
    options.hosted = false;
    options.listen = "127.0.0.1:0";
    options.backends = {"tcp"};
    options.config.set("tcp.listen", "127.0.0.1:0");
    options.config.set("log.level", "off");
    agent = Agent::create(std::move(options));
    const metadata::PeerMetadata metadata = metadata::decode(agent->metadata(nullptr));
    link = &fake.connect(agent->identity(), metadata.backends.at(0).address, 20 * kSecondNs, 0);
    EXPECT_TRUE(turn([&] { return link->ups + link->downs != 0; }));
    EXPECT_EQ(link->ups, 1u) << link->text;
  }
  ~PeersOfOtherVersions() override { agent->close(); }

  [[nodiscard]] bool turn(const std::function<bool()>& done) {
    return testing::turn_until({&fake}, [&] {
      if (done()) return true;
      agent->progress();
      return false;
    });
  }
  // The fake's first message, by which the agent knows what it understands; answered by the agent.
  void say_hello(uint16_t features) {
    ValueMessage ping = make_value_message(ControlType::kPing, 1);
    ping.header.features = features;
    EXPECT_EQ(fake.send(*link, {reinterpret_cast<const char*>(&ping), sizeof ping}), Status::kOk);
    EXPECT_TRUE(turn([&] { return got(ControlType::kPong) != nullptr; }));
  }
  // The last message of this type that the agent sent; null: none.
  [[nodiscard]] const std::string* got(ControlType type) const {
    const std::string* last = nullptr;
    for (const std::string& message : link->messages)
      if (static_cast<uint8_t>(message.front()) == static_cast<uint8_t>(type)) last = &message;
    return last;
  }
  [[nodiscard]] Peer& peer() { return *(hold_ = agent->find_peer("peer")); }

  FakeAgent fake{towline_tcp_plugin(), "peer", {{"tcp.listen", "127.0.0.1:0"}}};
  std::shared_ptr<Agent> agent;
  FakeLink* link = nullptr;

 private:
  PeerHold hold_;
};

TEST_F(PeersOfOtherVersions, OneBeforeTagsIsNeverSentAny) {
  say_hello(0);
  EXPECT_EQ(agent->send_notice(peer(), "seven", 5, 7), Status::kUnsupported);
  EXPECT_EQ(agent->send_notice(peer(), "plain", 5, 0), Status::kOk);
  ASSERT_TRUE(turn([&] { return got(ControlType::kData) != nullptr; }));
  const std::string& message = *got(ControlType::kData);
  EXPECT_EQ(message.size(), sizeof(DataMessage) + 5) << "the message of the version before tags";
  EXPECT_EQ(message.substr(sizeof(DataMessage)), "plain");
  EXPECT_EQ(agent->add_to_counter(peer(), 4711, 1), Status::kOk);
  for (int i = 0; i < 20; ++i) (void)turn([] { return true; });
  EXPECT_EQ(got(ControlType::kTagged), nullptr);
  EXPECT_EQ(link->downs, 0u);
}

TEST_F(PeersOfOtherVersions, OneWithTagsGetsThem) {
  say_hello(kTakesTags);
  EXPECT_EQ(agent->send_notice(peer(), "seven", 5, 7), Status::kOk);
  ASSERT_TRUE(turn([&] { return got(ControlType::kTagged) != nullptr; }));
  TaggedMessage header;
  std::memcpy(&header, got(ControlType::kTagged)->data(), sizeof header);
  EXPECT_EQ(header.tag, 7u);
  EXPECT_EQ(got(ControlType::kTagged)->substr(sizeof header), "seven");
}

// This version ignores fields that a later one adds.
TEST_F(PeersOfOtherVersions, FeaturesOfLaterVersionsAreIgnored) {
  say_hello(0xFFFF);
  EXPECT_EQ(agent->send_notice(peer(), "seven", 5, 7), Status::kOk);
  EXPECT_TRUE(turn([&] { return got(ControlType::kTagged) != nullptr; }));
  EXPECT_EQ(link->downs, 0u);
}

// A notice as an older version writes it: without features, and without a tag.
TEST_F(PeersOfOtherVersions, NoticesOfAnOlderOneHaveNoTag) {
  const DataMessage header = {{static_cast<uint8_t>(ControlType::kData), kControlVersion, 0, 5}, 0, 0, 1, 0};
  std::string message(reinterpret_cast<const char*>(&header), sizeof header);
  message += "older";
  EXPECT_EQ(fake.send(*link, message), Status::kOk);
  NoticeNode* node = nullptr;
  ASSERT_TRUE(turn([&] { return (node = agent->receive_notice()) != nullptr; }));
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(node->data()), node->bytes), "older");
  EXPECT_EQ(node->tag, 0u);
  agent->give_back_notice(node);
}

}  // namespace
}  // namespace towline
