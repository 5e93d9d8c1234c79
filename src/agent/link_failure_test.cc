// A link whose handlers or upkeep find no memory: it is closed, and nothing else is.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "agent/agent.h"
#include "agent/link.h"
#include "agent/transfer.h"
#include "agent/worker.h"
#include "support/failing_new.h"

namespace towline {
namespace {

class LinksWithoutMemory : public ::testing::Test {
 protected:
  LinksWithoutMemory() {
    bring_up(*bad_, "bad");
    bring_up(*good_, "good");
  }

  static std::shared_ptr<Agent> make(const std::string& name, bool hosted = true) {
    AgentOptions options;
    options.name = name;
    options.hosted = hosted;
    options.listen = "none";
    options.backends = {"memory"};
    options.config.set("log.level", "off");
    return Agent::create(std::move(options));
  }
  [[nodiscard]] Link& link_to(const Agent& peer) {
    PeerHold hold = agent_->find_peer(peer.identity().name);
    return hold->link(*agent_->backends().find("memory"), 0);
  }
  void bring_up(Agent& peer, const std::string& name) {
    (void)agent_->add_peer(peer.metadata(nullptr));
    ASSERT_TRUE(agent_->find_peer(name));
    connect(peer);
  }
  void connect(Agent& peer) {
    Link& link = link_to(peer);
    {
      const Worker::Guard guard(worker());
      link.connect(agent_->now_ns() + 10 * kSecondNs);
    }
    turn([&] { return link.up(); });
    EXPECT_TRUE(link.up()) << link.last_error_text();
  }
  template <class Done>
  void turn(Done&& done) {
    const uint64_t until_ns = agent_->now_ns() + 20 * kSecondNs;
    while (!done() && agent_->now_ns() < until_ns) worker().drive();
  }
  [[nodiscard]] Worker& worker() { return *agent_->workers()[0]; }

  // Runs `work` on the bad link without memory. Afterwards the link can be used again, and the good one never
  // noticed.
  template <class Work>
  void expect_contained(Work&& work, Status why = Status::kOutOfMemory) {
    Link& link = link_to(*bad_);
    Link& good = link_to(*good_);
    const uint32_t good_generation = good.generation();
    {
      const Worker::Guard guard(worker());
      support::fail_allocations();
      work(link);
      ASSERT_TRUE(support::stop_failing());
      EXPECT_EQ(link.state(), Link::State::kBroken);
      EXPECT_EQ(link.last_error(), why);
    }
    turn([&] { return link.state() == Link::State::kDown; });
    EXPECT_TRUE(good.up());
    EXPECT_EQ(good.generation(), good_generation);
    EXPECT_EQ(agent_->send_notice(good.peer(), "still", 5), Status::kOk);
    connect(*bad_);
    EXPECT_EQ(agent_->send_notice(link.peer(), "again", 5), Status::kOk);
  }

  std::shared_ptr<Agent> agent_ = make("agent", false);  // this thread does everything
  std::shared_ptr<Agent> bad_ = make("bad");
  std::shared_ptr<Agent> good_ = make("good");
};

TEST_F(LinksWithoutMemory, AMessageThatNeedsSomeEndsItsLinkOnly) {
  expect_contained([](Link& link) {
    const ValueMessage message = make_value_message(ControlType::kRevoke, 4711);
    link.on_message(reinterpret_cast<const uint8_t*>(&message), sizeof message);
  });
}

TEST_F(LinksWithoutMemory, UpkeepThatNeedsSomeEndsItsLinkOnly) {
  expect_contained([&](Link& link) {
    // The peer was asked and has been silent for long, which is told with a number in it.
    (void)link.maintain(agent_->now_ns() + 3600 * kSecondNs);
    (void)link.maintain(agent_->now_ns() + 7200 * kSecondNs);
  });
}

// It loses its text and keeps its status.
TEST_F(LinksWithoutMemory, AnEventThatNeedsSomeEndsItsLinkOnly) {
  expect_contained(
      [](Link& link) {
        link.on_event(TOWLINE_CONNECTION_DOWN, Status::kPeerLost,
                      "a reason that is longer than what a string holds without memory");
      },
      Status::kPeerLost);
}

// Nothing of an agent's end may depend on memory: its peers are told, and its regions are given back.
TEST_F(LinksWithoutMemory, AnAgentEndsWithoutAny) {
  std::vector<char> memory(4096);
  towline_region_options_t options = {};
  options.struct_size = sizeof options;
  options.access = TOWLINE_ACCESS_ALL;
  (void)agent_->own_regions().add(memory.data(), memory.size(), options);
  support::fail_allocations();
  agent_->close();
  (void)support::stop_failing();
  EXPECT_TRUE(agent_->closed());
  EXPECT_NE(link_to(*good_).state(), Link::State::kUp);
}

// As a plugin may. Only the deadline of another operation is a reason to try again.
TEST(LinksThatFailAtOnce, ForTheirTimeAreTriedOnce) {
  const auto make = [](const std::string& name) {
    AgentOptions options;
    options.name = name;
    options.listen = "none";
    options.backends = {"memory"};
    return Agent::create(std::move(options));
  };
  const auto agent = make("agent"), other = make("other");
  static int tries = 0;
  tries = 0;
  agent->backends().find("memory")->taken.connection.connect =
      [](towline_backend*, uint32_t, const towline_identity*, const void*, size_t, uint64_t, void*,
         towline_connection**) -> int32_t {
    ++tries;
    return TOWLINE_TIMED_OUT;
  };
  std::vector<char> mine(4096), theirs(4096);
  towline_region_options_t region = {};
  region.struct_size = sizeof region;
  region.access = TOWLINE_ACCESS_ALL;
  (void)agent->own_regions().add(mine.data(), mine.size(), region);
  (void)other->own_regions().add(theirs.data(), theirs.size(), region);
  (void)agent->add_peer(other->metadata(nullptr));
  const PeerHold peer = agent->find_peer("other");
  const auto block_in = [](const std::vector<char>& memory, const RegionIndex& regions) {
    const auto address = reinterpret_cast<uint64_t>(memory.data());
    const uint64_t bytes = memory.size();
    return ResolvedList::from_flat({TOWLINE_MEMORY_DRAM, 0, 1, &address, 8, &bytes, 8}, regions);
  };
  RemoteRegions known_regions;
  std::shared_ptr<const ResolvedList> to;
  peer->with_known_regions([&](const KnownRegions& known) {
    to = block_in(theirs, known.index);
    known_regions.push_back(known.by_key.find(to->regions().front().key)->second);
  });
  const auto from = block_in(mine, RegionTable::Reader(agent->regions()).index());
  Transfer move(agent, TOWLINE_WRITE, std::make_shared<BlockList>(from, nullptr, RemoteRegions()),
                std::make_shared<BlockList>(to, peer.get(), known_regions),
                Plan::compile(*from, nullptr, *to, nullptr, TOWLINE_WRITE), {}, 1);
  agent->add_post(move);
  EXPECT_THROW(move.establish("", LateDeadline::in(*agent, kSecondNs)), Error);
  EXPECT_EQ(tries, 1);
  agent->remove_post(move);
}

}  // namespace
}  // namespace towline
