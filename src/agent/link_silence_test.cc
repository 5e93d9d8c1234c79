// When a silent peer is given up.
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "agent/agent.h"
#include "agent/link.h"
#include "agent/worker.h"
#include "base/clock.h"

namespace towline {
namespace {

std::shared_ptr<Agent> make(const std::string& name, const VirtualClock& clock) {
  AgentOptions options;
  options.name = name;
  options.hosted = false;  // this thread does everything
  options.listen = "none";
  options.backends = {"memory"};
  options.clock = &clock;
  options.config.set("log.level", "off");
  return Agent::create(std::move(options));
}

// An engine that blocks, or an application that drives its agent seldom: meanwhile nobody asked the peers.
TEST(LinkSilence, AnAgentThatWasHeldUpAsksItsPeersBeforeItSuspectsThem) {
  VirtualClock clock(kSecondNs);
  const std::shared_ptr<Agent> agent = make("agent", clock);
  const std::shared_ptr<Agent> other = make("other", clock);
  (void)agent->add_peer(other->metadata(nullptr));
  const PeerHold peer = agent->find_peer("other");
  Link& link = peer->link(*agent->backends().find("memory"), 0);
  const auto turn = [](Agent& of) {
    for (int passes = 0; passes < 100; ++passes) of.workers()[0]->drive();
  };
  {
    const Worker::Guard guard(*agent->workers()[0]);
    link.connect(UINT64_MAX);
  }
  for (int turns = 0; turns < 10 && !link.up(); ++turns) {
    turn(*agent);
    turn(*other);
  }
  ASSERT_TRUE(link.up()) << link.last_error_text();
  for (int times = 0; times < 3; ++times) {
    clock.advance(3600 * kSecondNs);
    turn(*agent);
    EXPECT_EQ(link.peer().health(), TOWLINE_HEALTH_ALIVE);
    turn(*other);  // answers
    turn(*agent);
  }
  // It was asked, and does not answer.
  const AgentTuning& tuning = agent->tuning();
  clock.advance(tuning.heartbeat_ns);
  turn(*agent);
  clock.advance(tuning.suspect_ns - tuning.heartbeat_ns - kMillisecondNs);
  turn(*agent);
  EXPECT_EQ(link.peer().health(), TOWLINE_HEALTH_ALIVE);
  clock.advance(2 * kMillisecondNs);
  turn(*agent);
  EXPECT_EQ(link.peer().health(), TOWLINE_HEALTH_SUSPECT);
  turn(*other);
  turn(*agent);
  EXPECT_EQ(link.peer().health(), TOWLINE_HEALTH_ALIVE);
}

}  // namespace
}  // namespace towline
