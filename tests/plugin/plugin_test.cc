#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <string>
#include <vector>

#include "towline/towline.hpp"

namespace towline {
namespace {

using namespace std::chrono_literals;

std::string plugins(const std::string& file) { return "plugins = [\"" + file + "\"]\n"; }

TEST(Plugin, AnOutOfTreeBackendMovesBlocksAndNotices) {
  const Agent agent("host", {.listen = "none", .backends = "selfcopy", .config = plugins(SELFCOPY)});
  std::vector<std::byte> memory(1 << 16);
  for (size_t i = 0; i < memory.size() / 2; ++i) memory[i] = static_cast<std::byte>(i * 31);
  const Region region = agent.register_memory(dram(memory.data(), memory.size()), {.access = Access::kAll});
  const Peer self = agent.add_peer(agent.metadata());
  const BlockList here = agent.block_list(blocks_of(memory.data(), memory.size(), 4096));
  const BlockList there = self.block_list(blocks_of(memory.data(), memory.size(), 4096));
  const Transfer move = agent.transfer(here[Range{0, 1, 8}], there[Range{8, 1, 8}], {.notice = "moved"});
  // In progress: the agent's own thread was at work just then.
  const Status posted = move.post();
  ASSERT_EQ(posted == Status::kInProgress ? move.wait(20s) : posted, Status::kOk) << last_error();
  EXPECT_EQ(std::memcmp(memory.data(), memory.data() + memory.size() / 2, memory.size() / 2), 0);
  Notice notice;
  const auto until = std::chrono::steady_clock::now() + 20s;
  Status received = Status::kAgain;
  while ((received = agent.receive(notice)) == Status::kAgain && std::chrono::steady_clock::now() < until)
    (void)agent.wait(10ms);
  ASSERT_EQ(received, Status::kOk);
  EXPECT_EQ(notice.text(), "moved");
  EXPECT_NE(move.route().find("selfcopy"), std::string::npos);
}

TEST(Plugin, TheRouterTakesTheCheapestThatReaches) {
  const Agent agent("host", {.listen = "none", .config = plugins(SELFCOPY)});
  std::vector<std::byte> memory(8192);
  const Region region = agent.register_memory(dram(memory.data(), memory.size()), {.access = Access::kAll});
  const Peer self = agent.add_peer(agent.metadata());
  const Transfer move = agent.transfer(agent.block_list(Blocks::at(memory.data(), 4096)),
                                       self.block_list(Blocks::at(memory.data() + 4096, 4096)));
  EXPECT_NE(move.route().find("\"backend\":\"selfcopy\""), std::string::npos) << move.route();
}

TEST(Plugin, OneThatCannotBeLoadedIsNamedWithTheReasonAndTheRestGoesOn) {
  for (const auto& [file, reason] :
       {std::pair<std::string, std::string>{"/no/such/plugin.so", "/no/such/plugin.so"},
        {BAD_MAJOR, "ABI 99"}}) {
    const Agent agent("host", {.listen = "none", .config = plugins(file)});
    EXPECT_NE(agent.info().find(reason), std::string::npos) << agent.info();
    EXPECT_NE(agent.info().find("\"name\":\"memory\""), std::string::npos);
  }
}

TEST(Plugin, OfABackendThatTheAgentLacksItIsToldHowToGetIt) {
  std::vector<std::byte> memory(8192);
  for (const auto& [backends, wanted, text] : std::vector<std::tuple<std::string, std::string, std::string>>{
           {"", "ucx",
            "agent 'host' has no backend 'ucx'; the setting plugins = \"ucx\" (TOWLINE_PLUGINS=ucx) adds it"},
           {"memory", "tcp",
            "agent 'host' has no backend 'tcp'; the setting backends leaves it out. It has: memory"},
           {"memory", "nonesuch", "agent 'host' has no backend 'nonesuch'. It has: memory"}}) {
    const Agent agent("host", {.listen = "none", .backends = backends});
    const Region region = agent.register_memory(dram(memory.data(), memory.size()), {.access = Access::kAll});
    const Peer self = agent.add_peer(agent.metadata());
    try {
      (void)agent.transfer(agent.block_list(Blocks::at(memory.data(), 4096)),
                           self.block_list(Blocks::at(memory.data() + 4096, 4096)), {.backend = wanted});
      ADD_FAILURE() << wanted;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace towline
