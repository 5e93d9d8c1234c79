// Plugins in the field go on working: one that was built against the headers of the first release, and ones whose
// tables are those of other releases. frozen_plugin.c.
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <string>
#include <vector>

#include "towline/plugin/v1.h"
#include "towline/towline.hpp"

namespace towline {
namespace {

using namespace std::chrono_literals;

std::string file_of(const std::string& variant) { return FROZEN + variant + ".so"; }

std::string settings(const std::string& variant, const std::string& more = "") {
  return "plugins = [\"" + file_of(variant) + "\"]\n" + more;
}

class SelfCopy {
 public:
  SelfCopy(const std::string& variant, const std::string& backend, const std::string& more = "")
      : agent_("host", {.listen = "none", .backends = backend, .config = settings(variant, more)}),
        memory_(2 * kBytes),
        region_(agent_.register_memory(dram(memory_.data(), memory_.size()))),
        self_(agent_.add_peer(agent_.metadata())) {}

  // The first half to the second and back, page by page, with a notice.
  void moves(const std::string& backend) {
    for (size_t i = 0; i < kBytes; ++i) memory_[i] = static_cast<std::byte>(i * 31 + i / 4096);
    const std::vector<std::byte> before(memory_.begin(), memory_.begin() + kBytes);
    run(Op::write, backend);
    EXPECT_EQ(std::memcmp(memory_.data() + kBytes, before.data(), kBytes), 0);
    std::memset(memory_.data(), 0, kBytes);
    run(Op::read, backend);
    EXPECT_EQ(std::memcmp(memory_.data(), before.data(), kBytes), 0);
  }
  [[nodiscard]] std::string info() const { return agent_.info(); }

 private:
  static constexpr size_t kBytes = 64 << 10;

  void run(Op op, const std::string& backend) {
    const BlockList here = agent_.block_list(blocks_of(memory_.data(), memory_.size(), 4096));
    const BlockList there = self_.block_list(blocks_of(memory_.data(), memory_.size(), 4096));
    const Transfer move =
        agent_.transfer(op, here, Range{0, 1, 16}, there, Range{16, 1, 16}, {.notice = "moved"});
    EXPECT_NE(move.route().find("\"backend\":\"" + backend + "\""), std::string::npos) << move.route();
    const Status posted = move.post();
    ASSERT_EQ(posted == Status::kInProgress ? move.wait(20s) : posted, Status::kOk) << last_error();
    Notice notice;
    const auto until = std::chrono::steady_clock::now() + 20s;
    while (agent_.receive(notice) == Status::kAgain && std::chrono::steady_clock::now() < until)
      (void)agent_.wait(10ms);
    EXPECT_EQ(notice.text(), "moved");
  }

  Agent agent_;
  std::vector<std::byte> memory_;
  Region region_;
  Peer self_;
};

TEST(FrozenPlugin, OneOfTheFirstReleaseLoadsAndMovesBytes) { SelfCopy("as_it_is", "frozen").moves("frozen"); }

TEST(FrozenPlugin, OneWhoseTablesHaveOnlyWhatWasNeededFirstLoadsAndMovesBytes) {
  SelfCopy("fewer_slots", "frozen").moves("frozen");
  SelfCopy("fewer_slots", "frozen_later").moves("frozen_later");
}

TEST(FrozenPlugin, OneWhoseTablesHaveMoreThanThisLibraryKnowsLoadsAndMovesBytes) {
  SelfCopy("more_slots", "frozen").moves("frozen");
  SelfCopy("more_slots", "frozen_later").moves("frozen_later");
}

TEST(FrozenPlugin, OneWithATableSmallerThanAnyReleaseIsRefusedWithASentence) {
  const Agent agent("host", {.listen = "none", .config = settings("too_small")});
  const std::string bytes = std::to_string(TOWLINE_DATA_TABLE_V1_MINIMUM - sizeof(void*));
  const std::string minimum = std::to_string(TOWLINE_DATA_TABLE_V1_MINIMUM);
  const std::string sentence =
      "table 'data' of frozen has " + bytes + " bytes, and had " + minimum + " in its first release already";
  EXPECT_NE(agent.info().find(sentence), std::string::npos) << agent.info();
  EXPECT_NE(agent.info().find("\"name\":\"memory\""), std::string::npos);
}

TEST(FrozenPlugin, OneLibraryOffersSeveralBackends) {
  SelfCopy both("as_it_is", "frozen,frozen_later");
  EXPECT_NE(both.info().find("\"name\":\"frozen_later\""), std::string::npos) << both.info();
  SelfCopy("as_it_is", "frozen_later").moves("frozen_later");
}

TEST(FrozenPlugin, AResultThatSaysNothingEndsItsPartWithAnError) {
  const Agent agent("host",
                    {.listen = "none", .backends = "frozen_later", .config = settings("no_result_size")});
  std::vector<std::byte> memory(8192);
  const Region region = agent.register_memory(dram(memory.data(), memory.size()));
  const Peer self = agent.add_peer(agent.metadata());
  const Transfer move = agent.transfer(Op::write, agent.block_list(Blocks::at(memory.data(), 4096)),
                                       self.block_list(Blocks::at(memory.data() + 4096, 4096)));
  const Status posted = move.post();
  EXPECT_EQ(posted == Status::kInProgress ? move.wait(20s) : posted, Status::kInternal);
}

TEST(FrozenPlugin, TokensAndAddressesOf64KiBArriveWhole) {
  const std::string most = std::to_string(TOWLINE_MAX_TOKEN_BYTES);
  ASSERT_EQ(most, "65535");
  SelfCopy("as_it_is", "frozen", "frozen.token_bytes = " + most + "\nfrozen.address_bytes = " + most + "\n")
      .moves("frozen");
}

TEST(FrozenPlugin, TheAgentTellsWhatABackendMovesAndWhyItDoesNot) {
  const Agent agent("host", {.listen = "none", .config = settings("as_it_is")});
  const std::string info = agent.info();
  EXPECT_NE(
      info.find(
          R"("moves":[{"local":["dram"],"ops":["read","write"],"remote":["dram"],"where":"same process"}])"),
      std::string::npos)
      << info;
  EXPECT_NE(info.find(R"("where":"any host")"), std::string::npos);
}

}  // namespace
}  // namespace towline
