// Tests of which names and metadata agents accept of one another, and from whom.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "agent/agent.h"
#include "agent/link.h"
#include "base/error.h"
#include "metadata/blob/blob.h"
#include "support/unknown_agent.h"

namespace towline {
namespace {

// An agent somewhere else, of which nothing is known but what it says.
metadata::PeerMetadata stranger(const std::string& name, size_t regions = 0) {
  return support::unknown_agent(name, regions);
}

std::shared_ptr<Agent> make_agent(const std::string& name, const std::string& listen = "none",
                                  const std::vector<std::pair<std::string, std::string>>& settings = {}) {
  AgentOptions options;
  options.name = name;
  options.listen = listen;
  options.backends = {"memory", "tcp"};
  options.config.set("log.level", "off");
  for (const auto& [key, value] : settings) options.config.set(key, value);
  return Agent::create(std::move(options));
}

Peer& add(Agent& agent, const metadata::PeerMetadata& metadata) {
  return agent.add_peer(metadata::encode(metadata));
}

Status status_of_find(Agent& agent, const std::string& name) {
  try {
    return agent.find_peer(name) ? Status::kOk : Status::kNotFound;
  } catch (const Error& error) {
    return error.code();
  }
}

TEST(Names, WhatAStrangerOffersChangesNothingOfAPeerThatWasAskedFor) {
  const auto agent = make_agent("agent");
  metadata::PeerMetadata real = stranger("x", 1);
  real.listen = {"192.0.2.1:1"};
  real.backends = {{"tcp", "1", {1, 2, 3}}};
  Peer& peer = add(*agent, real);
  metadata::PeerMetadata forged = real;
  forged.partial = true;
  forged.listen = {"192.0.2.2:2"};
  forged.backends[0].address = {9, 9, 9};
  forged.regions = stranger("x", 3).regions;
  agent->offer_peer(metadata::encode(forged));
  std::vector<uint8_t> address;
  ASSERT_TRUE(peer.address("tcp", address));
  EXPECT_EQ(address, real.backends[0].address);
  EXPECT_EQ(peer.listen_addresses(), real.listen);
  EXPECT_EQ(peer.regions().size(), 1u);
  EXPECT_EQ(agent->find_peer("x").get(), &peer);
  EXPECT_EQ(&add(*agent, real), &peer);
}

TEST(Names, OfThisAgentItselfOnlyItsOwnWordIsTaken) {
  const auto agent = make_agent("agent");
  metadata::PeerMetadata forged = metadata::decode(agent->metadata(nullptr));
  const metadata::PeerMetadata real = forged;
  ASSERT_FALSE(real.backends.empty());
  forged.identity.name = "another";
  forged.identity.host.pid += 1;
  forged.listen = {"192.0.2.2:2"};
  for (metadata::BackendMetadata& backend : forged.backends) backend.address = {9, 9, 9};
  forged.regions = stranger("x", 3).regions;
  Peer& self = add(*agent, forged);
  EXPECT_EQ(self.name(), "agent");
  EXPECT_EQ(self.identity().pid, real.identity.host.pid);
  EXPECT_EQ(self.listen_addresses(), real.listen);
  EXPECT_TRUE(self.regions().empty());
  for (const metadata::BackendMetadata& backend : real.backends) {
    std::vector<uint8_t> address;
    ASSERT_TRUE(self.address(backend.name, address)) << backend.name;
    EXPECT_EQ(address, backend.address) << backend.name;
  }
}

TEST(Names, ANameAloneEndsNobody) {
  const auto agent = make_agent("agent");
  Peer& real = add(*agent, stranger("x"));
  agent->offer_peer(metadata::encode(stranger("x")));
  EXPECT_EQ(real.ended(), Status::kOk);
  EXPECT_EQ(status_of_find(*agent, "x"), Status::kAlreadyExists) << "there may be two of them now";
  EXPECT_EQ(agent->find_peer(real.incarnation_text()).get(), &real);
}

TEST(Names, TheApplicationMayBringARestartedAgent) {
  const auto agent = make_agent("agent");
  Peer& before = add(*agent, stranger("x"));
  Peer& after = add(*agent, stranger("x"));
  EXPECT_EQ(before.ended(), Status::kPeerRestarted) << "nothing says that it is still there";
  EXPECT_EQ(agent->find_peer("x").get(), &after);
}

TEST(Names, AnAgentThatAnswersWhereItListensIsNotTakenForRestarted) {
  const auto agent = make_agent("agent");
  const auto one = make_agent("x", "127.0.0.1:0");
  auto two = make_agent("x", "127.0.0.1:0");
  Peer& first = agent->connect_peer(one->address(), Deadline::after(monotonic_now_ns(), kSecondNs));
  Peer& second = agent->connect_peer(two->address(), Deadline::after(monotonic_now_ns(), kSecondNs));
  EXPECT_EQ(first.ended(), Status::kOk);
  EXPECT_EQ(second.ended(), Status::kOk);
  EXPECT_EQ(status_of_find(*agent, "x"), Status::kAlreadyExists);
  two = make_agent("x", "127.0.0.1:0");
  Peer& third = agent->connect_peer(two->address(), Deadline::after(monotonic_now_ns(), kSecondNs));
  EXPECT_EQ(first.ended(), Status::kOk);
  EXPECT_EQ(second.ended(), Status::kPeerRestarted);
  EXPECT_EQ(third.ended(), Status::kOk);
}

TEST(Names, NobodyElseBringsOurOwnMetadata) {
  const auto agent = make_agent("agent");
  agent->offer_peer(agent->metadata(nullptr));
  EXPECT_EQ(status_of_find(*agent, "agent"), Status::kNotFound);
  towline_identity own = agent->identity();
  void* link = nullptr;
  EXPECT_EQ(agent->accepted(*agent->backends().find("tcp"), 0, nullptr, own, &link),
            Status::kPermissionDenied);
  EXPECT_EQ(status_of_find(*agent, "agent"), Status::kNotFound);
  Peer& self = agent->add_peer(agent->metadata(nullptr));
  EXPECT_EQ(agent->accepted(*agent->backends().find("tcp"), 0, nullptr, own, &link),
            Status::kPermissionDenied);
  EXPECT_EQ(agent->find_peer("agent").get(), &self);
}

TEST(Names, OneRegionThatMakesNoSenseLeavesTheOthersUsable) {
  const auto agent = make_agent("agent");
  metadata::PeerMetadata newer = stranger("newer", 4);
  newer.regions[0].region.kind = 4711;
  newer.regions[1].region.bytes = UINT64_MAX;
  newer.regions[2].region.flags = 1u << 31;
  for (Peer* peer : {&add(*agent, newer), agent->find_peer("newer").get()}) {
    EXPECT_EQ(peer->regions().size(), 2u);
    const towline_region_ref& good = newer.regions[3].region;
    peer->with_known_regions([&](const KnownRegions& known) {
      EXPECT_NE(known.index.find(good.kind, good.device, good.address, good.bytes), nullptr);
    });
  }
}

TEST(Names, RegionsThatWereLetGoDoNotComeBackWithOlderMetadata) {
  const auto agent = make_agent("agent");
  const metadata::PeerMetadata metadata = stranger("x", 100);
  Peer& peer = add(*agent, metadata);
  for (const auto& entry : metadata.regions) EXPECT_NE(peer.forget_region(entry.region.key), nullptr);
  EXPECT_EQ(peer.forget_region(4711), nullptr);
  add(*agent, metadata);
  EXPECT_TRUE(peer.regions().empty());
}

TEST(Names, AnAddressRegisteredAgainMeansTheLaterRegion) {
  for (const uint64_t later_key : {100u, 900u}) {
    const auto agent = make_agent("agent");
    metadata::PeerMetadata metadata = stranger("x", 1);
    metadata.regions[0].region.key = 500;
    Peer& peer = add(*agent, metadata);
    const towline_region_ref region = metadata.regions[0].region;
    const auto key_found = [&] {
      return peer.with_known_regions([&](const KnownRegions& known) {
        return known.index.find(region.kind, region.device, region.address, region.bytes)->key;
      });
    };
    EXPECT_EQ(key_found(), 500u);
    metadata.regions[0].region.key = later_key;
    add(*agent, metadata);
    EXPECT_EQ(key_found(), later_key) << "the owner's word about the first is still on its way";
    EXPECT_NE(peer.forget_region(later_key), nullptr);
    EXPECT_EQ(key_found(), 500u);
  }
}

TEST(Names, UnsolicitedPeersAreBoundedInNumber) {
  const auto agent = make_agent("agent", "none", {{"tuning.peer.unsolicited", "3"}});
  const metadata::PeerMetadata held = stranger("held", 2);
  agent->offer_peer(metadata::encode(held));
  PeerHold hold = agent->find_peer("held");
  ASSERT_TRUE(hold);
  Peer& asked_for = add(*agent, stranger("asked for"));
  for (int i = 0; i < 100; ++i) agent->offer_peer(metadata::encode(stranger("s" + std::to_string(i))));
  EXPECT_EQ(status_of_find(*agent, "s97"), Status::kNotFound);
  EXPECT_EQ(status_of_find(*agent, "s98"), Status::kOk);
  EXPECT_EQ(status_of_find(*agent, "s99"), Status::kOk);
  EXPECT_EQ(agent->find_peer("held").get(), hold.get()) << "somebody uses it";
  EXPECT_EQ(hold->regions().size(), 2u);
  EXPECT_EQ(agent->find_peer("asked for").get(), &asked_for);
  hold = {};
  for (int i = 0; i < 3; ++i) agent->offer_peer(metadata::encode(stranger("t" + std::to_string(i))));
  EXPECT_EQ(status_of_find(*agent, "held"), Status::kNotFound);
}

TEST(Names, UnsolicitedPeersInUseLeaveNoRoom) {
  const auto agent = make_agent("agent", "none", {{"tuning.peer.unsolicited", "2"}});
  std::vector<PeerHold> holds;
  for (const char* name : {"a", "b"}) {
    agent->offer_peer(metadata::encode(stranger(name)));
    holds.push_back(agent->find_peer(name));
  }
  EXPECT_THROW(agent->offer_peer(metadata::encode(stranger("c"))), Error);
  agent->remove_peer(*holds[0]);
  EXPECT_EQ(holds[0]->ended(), Status::kStale);
  agent->offer_peer(metadata::encode(stranger("c")));
  EXPECT_EQ(status_of_find(*agent, "c"), Status::kOk);
}

TEST(Names, WhatUnsolicitedPeersOfferIsBoundedInBytes) {
  const auto agent = make_agent("agent", "none", {{"tuning.peer.unsolicited_bytes", "1MiB"}});
  for (int i = 0; i < 20; ++i) agent->offer_peer(metadata::encode(stranger("s" + std::to_string(i), 1000)));
  EXPECT_EQ(status_of_find(*agent, "s0"), Status::kNotFound);
  EXPECT_EQ(status_of_find(*agent, "s19"), Status::kOk);
  EXPECT_EQ(agent->find_peer("s19")->regions().size(), 1000u);
  const std::vector<uint8_t> again = metadata::encode(stranger("again", 2000));
  for (int i = 0; i < 20; ++i) agent->offer_peer(again);
  EXPECT_EQ(agent->find_peer("again")->regions().size(), 2000u);
  agent->offer_peer(again);
  EXPECT_EQ(status_of_find(*agent, "s19"), Status::kOk) << "the same again takes no more room";
  EXPECT_THROW(agent->offer_peer(metadata::encode(stranger("large", 5000))), Error);
  EXPECT_EQ(status_of_find(*agent, "large"), Status::kNotFound);
}

TEST(Names, StrangersShareOneSeriesOfCounters) {
  const auto agent = make_agent("agent", "none", {{"tuning.peer.unsolicited", "2000"}});
  Backend& tcp = *agent->backends().find("tcp");
  const Series* shared = nullptr;
  for (int i = 0; i < 600; ++i) {  // more than there are series
    const std::string name = "s" + std::to_string(i);
    agent->offer_peer(metadata::encode(stranger(name)));
    const PeerHold peer = agent->find_peer(name);
    ASSERT_TRUE(peer);
    const Link& link = peer->link_for_incoming(tcp, 0);
    if (shared == nullptr) shared = &link.received();
    ASSERT_EQ(&link.received(), shared) << name;
  }
  Peer& one = add(*agent, stranger("one"));
  Peer& other = add(*agent, stranger("other one"));
  const Series* const mine = &one.link(tcp, 0).received();
  EXPECT_NE(mine, shared);
  EXPECT_NE(mine, &other.link(tcp, 0).received()) << "there is room for those that were asked for";
}

}  // namespace
}  // namespace towline
