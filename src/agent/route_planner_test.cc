#include "agent/route_planner.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "agent/agent.h"
#include "agent/peer.h"

namespace towline {
namespace {

const std::string kAny;  // outlives every Candidates

class Planner : public ::testing::Test {
 protected:
  // Prices belong to the process, and the tests may run in any order and again.
  Planner() {
    for (const char* backend : {"memory", "shm", "tcp", "posix"}) {
      Prices& prices = prices_of(backend, 0);
      for (uint32_t i = 0; i < Prices::kDistances * Prices::kOps * 2; ++i) std::construct_at(&prices.row(i));
    }
  }

  static std::shared_ptr<Agent> open(const char* name, const std::vector<std::string>& backends) {
    AgentOptions options;
    options.name = name;
    options.listen = "127.0.0.1:0";
    options.backends = backends;
    options.config.set("log.level", "off");
    return Agent::create(std::move(options));
  }
  static std::vector<std::string> order(const std::vector<std::string>& backends, const Need& need,
                                        const Backend** passed = nullptr) {
    const auto there = open("there", backends);
    const auto here = open("here", backends);
    Peer& peer = here->add_peer(there->metadata(nullptr));
    std::vector<std::string> names;
    Candidates candidates(peer, need, kAny);
    while (const Backend* backend = candidates.next()) {
      EXPECT_EQ(&candidates.prices(), &price_row(*backend, peer, need)) << backend->name;
      if (passed != nullptr && names.empty()) *passed = candidates.passed();
      names.push_back(backend->name);
    }
    here->close();
    there->close();
    return names;
  }
  static void report(const char* backend, uint32_t cost, const Need& need, uint64_t took_ns, uint32_t count) {
    PriceRow& row = prices_of(backend, cost).row(TOWLINE_WHERE_SAME_PROCESS, need.op, false);
    for (uint32_t i = 0; i < count; ++i) row.report(need.bytes, took_ns);
  }
  static Need dram(uint64_t bytes) {
    return {TOWLINE_WRITE, 1u << TOWLINE_MEMORY_DRAM, 1u << TOWLINE_MEMORY_DRAM, bytes};
  }
  using Names = std::vector<std::string>;
};

TEST_F(Planner, GoesByDeclaredCostWhereNothingWasMeasured) {
  EXPECT_EQ(order({}, dram(4 << 10)), (Names{"memory", "shm", "tcp"}));
}

TEST_F(Planner, PrefersWhatIsMeasuredAsClearlyCheaper) {
  const Need need = dram(32 << 10);
  report("memory", 10, need, 100'000, 20);
  report("shm", 20, need, 80'000, 20);
  EXPECT_EQ(order({}, need), (Names{"memory", "shm", "tcp"})) << "not clearly";
  report("shm", 20, need, 20'000, 100);
  const Backend* passed = nullptr;
  EXPECT_EQ(order({}, need, &passed), (Names{"shm", "memory", "tcp"}));
  ASSERT_NE(passed, nullptr);
  EXPECT_EQ(order({}, dram(1 << 20)), (Names{"memory", "shm", "tcp"})) << "other sizes have their own prices";
  Need read = need;
  read.op = TOWLINE_READ;
  EXPECT_EQ(order({}, read), (Names{"memory", "shm", "tcp"})) << "so have other directions";
}

TEST_F(Planner, ComparesMeasuredPricesOnlyAndThoseOfSeveralSamples) {
  const Need need = dram(256 << 10);
  report("memory", 10, need, 10'000'000, 20);
  EXPECT_EQ(order({}, need), (Names{"memory", "shm", "tcp"})) << "nobody tried the others";
  report("tcp", 100, need, 100'000, PriceRow::kEnough - 1);
  EXPECT_EQ(order({}, need), (Names{"memory", "shm", "tcp"})) << "too few samples";
  report("tcp", 100, need, 100'000, 1);
  EXPECT_EQ(order({}, need), (Names{"tcp", "memory", "shm"}));
}

TEST_F(Planner, KeepsTheApplicationsOrder) {
  const Need need = dram(2 << 20);
  report("memory", 10, need, 100'000, 20);
  report("tcp", 100, need, 10'000'000, 20);
  EXPECT_EQ(order({"tcp", "memory"}, need), (Names{"tcp", "memory"}));
}

TEST_F(Planner, LegsWithinTheAgentGoByDeclaredCost) {
  const auto agent = open("alone", {"tcp", "memory"});
  Peer& self = agent->add_peer(agent->metadata(nullptr));
  Candidates listed(self, dram(8), kAny);
  EXPECT_EQ(listed.next()->name, "tcp");
  Candidates near(self, dram(8), kAny, Candidates::Order::kDeclared);
  EXPECT_EQ(near.next()->name, "memory");
  agent->close();
}

TEST_F(Planner, MessagesGoByDeclaredCost) { EXPECT_EQ(order({}, {}).front(), "memory"); }

TEST_F(Planner, TheLegsOfATransferMeetInHostMemory) {
  const Need whole = {TOWLINE_READ, 1u << TOWLINE_MEMORY_VRAM, 1u << TOWLINE_MEMORY_OBJECT, 5};
  EXPECT_EQ(near_leg(whole).op, TOWLINE_WRITE);
  EXPECT_EQ(near_leg(whole).local, 1u << TOWLINE_MEMORY_DRAM);
  EXPECT_EQ(near_leg(whole).remote, 1u << TOWLINE_MEMORY_VRAM);
  EXPECT_EQ(far_leg(whole).op, TOWLINE_READ);
  EXPECT_EQ(far_leg(whole).local, 1u << TOWLINE_MEMORY_DRAM);
  EXPECT_EQ(far_leg(whole).remote, 1u << TOWLINE_MEMORY_OBJECT);
}

}  // namespace
}  // namespace towline
