#include "transports/tcpx/kernel/flow_rules.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <linux/ethtool.h>

#include <array>
#include <cstring>

namespace towline::tcpx {
namespace {

FlowRule rule(const char* text) {
  const auto parsed = parse_rule(text);
  EXPECT_TRUE(parsed) << text;
  return parsed.value_or(FlowRule{});
}

TEST(FlowRules, ARuleNamesBothEndsOfAConnectionAndItsQueue) {
  std::array<uint8_t, kRuleBytes> bytes;
  ASSERT_TRUE(encode_insert_rule(rule("10.0.0.1:5000 > 10.0.0.2:6000 queue 3"), bytes));
  ethtool_rxnfc call;
  std::memcpy(&call, bytes.data(), sizeof call);
  EXPECT_EQ(call.cmd, uint32_t{ETHTOOL_SRXCLSRLINS});
  EXPECT_EQ(call.fs.flow_type, uint32_t{TCP_V4_FLOW});
  EXPECT_EQ(call.fs.ring_cookie, 3u);
  EXPECT_EQ(call.fs.location, uint32_t{RX_CLS_LOC_ANY});
  EXPECT_EQ(ntohl(call.fs.h_u.tcp_ip4_spec.ip4src), 0x0a000001u);
  EXPECT_EQ(ntohs(call.fs.h_u.tcp_ip4_spec.pdst), 6000u);
  EXPECT_EQ(call.fs.m_u.tcp_ip4_spec.ip4dst, UINT32_MAX);
}

TEST(FlowRules, RulesComeBackAsTheyWere) {
  for (const char* text :
       {"10.0.0.1:5000 > 10.0.0.2:6000 queue 3", "[2001:db8::1]:1 > [fe80::2]:65535 queue 65535"}) {
    std::array<uint8_t, kRuleBytes> bytes;
    ASSERT_TRUE(encode_insert_rule(rule(text), bytes));
    const auto back = decode_rule(bytes);
    ASSERT_TRUE(back);
    EXPECT_EQ(*back, rule(text));
    EXPECT_EQ(back->text(), text);
  }
}

// Sockets of both families see IPv4 peers so.
TEST(FlowRules, MappedAddressesAreIPv4OnTheWire) {
  sockaddr_in6 mapped = {};
  mapped.sin6_family = AF_INET6;
  mapped.sin6_port = htons(5000);
  inet_pton(AF_INET6, "::ffff:10.0.0.1", &mapped.sin6_addr);
  FlowRule mixed = rule("10.0.0.1:5000 > 10.0.0.2:6000 queue 3");
  mixed.from = SocketAddress(reinterpret_cast<const sockaddr*>(&mapped), sizeof mapped);
  std::array<uint8_t, kRuleBytes> bytes;
  ASSERT_TRUE(encode_insert_rule(mixed, bytes));
  EXPECT_EQ(decode_rule(bytes)->text(), "10.0.0.1:5000 > 10.0.0.2:6000 queue 3");
}

TEST(FlowRules, TwoFamiliesAreNoConnection) {
  FlowRule mixed = rule("10.0.0.1:5000 > 10.0.0.2:6000 queue 3");
  mixed.to = rule("[::1]:1 > [::2]:2 queue 0").to;
  std::array<uint8_t, kRuleBytes> bytes;
  EXPECT_FALSE(encode_insert_rule(mixed, bytes));
  EXPECT_FALSE(encode_insert_rule(FlowRule{}, bytes));
}

TEST(FlowRules, RulesOfAnotherShapeAreNotOurs) {
  std::array<uint8_t, kRuleBytes> bytes;
  ASSERT_TRUE(encode_insert_rule(rule("10.0.0.1:5000 > 10.0.0.2:6000 queue 3"), bytes));
  ethtool_rxnfc call;
  std::memcpy(&call, bytes.data(), sizeof call);
  const auto refused = [&](const ethtool_rxnfc& changed) {
    std::memcpy(bytes.data(), &changed, sizeof changed);
    return !decode_rule(bytes).has_value();
  };
  ethtool_rxnfc any_source = call;
  any_source.fs.m_u.tcp_ip4_spec.psrc = 0;
  EXPECT_TRUE(refused(any_source));
  ethtool_rxnfc dropped = call;
  dropped.fs.ring_cookie = RX_CLS_FLOW_DISC;
  EXPECT_TRUE(refused(dropped));
  ethtool_rxnfc udp = call;
  udp.fs.flow_type = UDP_V4_FLOW;
  EXPECT_TRUE(refused(udp));
  EXPECT_FALSE(decode_rule(std::span(bytes).first(100)));
}

TEST(FlowRules, ListsAreBoundedByTheirRoom) {
  std::vector<uint8_t> call = encode_list_rules(3);
  const uint32_t places[] = {7, 8, 9};
  std::memcpy(call.data() + offsetof(ethtool_rxnfc, rule_locs), places, sizeof places);
  EXPECT_EQ(decode_places(call), (std::vector<uint32_t>{7, 8, 9}));
  const uint32_t lie = UINT32_MAX;
  std::memcpy(call.data() + offsetof(ethtool_rxnfc, rule_cnt), &lie, sizeof lie);
  EXPECT_LE(decode_places(call).size(), 4u);
  EXPECT_EQ(decode_places({}), std::vector<uint32_t>{});

  const uint32_t queues[] = {0, 1, 0, 1};
  EXPECT_EQ(decode_spread(encode_set_spread(queues)), (std::vector<uint32_t>{0, 1, 0, 1}));
  EXPECT_TRUE(decode_spread({}).empty());
}

TEST(FlowRules, TextThatIsNoRuleIsRefused) {
  for (const char* text : {"", "a", "10.0.0.1:5 > 10.0.0.2:6", "10.0.0.1:5 > 10.0.0.2:6 queue ",
                           "10.0.0.1:5 > 10.0.0.2:6 queue 1x", "queue 1 > 10.0.0.1:5",
                           "unix:/a > unix:/b queue 1", "name:5 > 10.0.0.2:6 queue 1"})
    EXPECT_FALSE(parse_rule(text)) << text;
}

}  // namespace
}  // namespace towline::tcpx
