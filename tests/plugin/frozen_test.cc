// Plugins in the field go on working: one that was built against the headers of the first release, and ones whose
// tables are those of other releases. frozen_plugin.c.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/directed.h"
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
        region_(agent_.register_memory(dram(memory_.data(), memory_.size()), {.access = Access::kAll})),
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
        directed(agent_, op, here[Range{0, 1, 16}], there[Range{16, 1, 16}], {.notice = "moved"});
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

TEST(FrozenPlugin, OneThatLacksWhatEveryBackendNeedsIsRefusedWithASentence) {
  for (const auto& [variant, sentence] : std::vector<std::pair<std::string, std::string>>{
           {"no_submit", "the slot 'submit' of table 'data' of frozen is null"},
           {"some_streams", "table 'data' of frozen has 1 of the 5 slots stream_capture"},
           {"no_moves", "frozen has 1 as move_count, and moves is null"},
           {"wild_move", "the struct_size of move 0 of frozen is 1152921504606846976"},
           {"no_name", "the plugin has no name, and every plugin needs one"},
           {"no_open", "frozen has no function 'open', and every backend needs one"},
           {"no_backend", "opening it failed: it answered OK, but gave no backend"}}) {
    const Agent agent("host", {.listen = "none", .config = settings(variant)});
    EXPECT_NE(agent.info().find(sentence), std::string::npos) << variant << ": " << agent.info();
    EXPECT_NE(agent.info().find("\"name\":\"memory\""), std::string::npos);
  }
}

TEST(FrozenPlugin, OneWithoutTextsForPeopleMovesBytesAndIsListed) {
  SelfCopy agent("no_texts", "frozen");
  agent.moves("frozen");
  EXPECT_NE(agent.info().find("\"name\":\"frozen\""), std::string::npos);
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
  const Region region = agent.register_memory(dram(memory.data(), memory.size()), {.access = Access::kAll});
  const Peer self = agent.add_peer(agent.metadata());
  const Transfer move = agent.transfer(agent.block_list(Blocks::at(memory.data(), 4096)),
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

// A named pipe: opening it to read waits until somebody opens it to write.
class NamedPipe {
 public:
  NamedPipe() { EXPECT_EQ(mkfifo(path_.c_str(), 0600), 0) << path_; }
  NamedPipe(const NamedPipe&) = delete;
  NamedPipe& operator=(const NamedPipe&) = delete;
  ~NamedPipe() { unlink(path_.c_str()); }
  [[nodiscard]] const std::string& path() const { return path_; }
  // Once somebody reads; lets them go on.
  [[nodiscard]] bool release(std::chrono::milliseconds patience) const {
    const auto until = std::chrono::steady_clock::now() + patience;
    for (;;) {
      const int fd = open(path_.c_str(), O_WRONLY | O_NONBLOCK);
      if (fd >= 0) {
        const bool written = write(fd, "x", 1) == 1;
        close(fd);
        return written;
      }
      if (std::chrono::steady_clock::now() > until) return false;
      std::this_thread::yield();
    }
  }

 private:
  std::string path_ = ::testing::TempDir() + "towline-frozen-" + std::to_string(getpid());
};

constexpr auto kHeartbeats =
    "peer.heartbeat = \"50ms\"\npeer.suspect = \"250ms\"\npeer.lost = \"500ms\"\ntcp.listen = "
    "\"127.0.0.1:0\"\n";

// Pinning a terabyte takes seconds. Peers that hear nothing for that long would give this agent up.
TEST(Registering, ThatBlocksStopsNeitherHeartbeatsNorPosts) {
  const NamedPipe pipe;
  const Agent agent("host", {.backends = "tcp,frozen",
                             .config = settings(
                                 "as_it_is", kHeartbeats + ("frozen.block_on = \"" + pipe.path() + "\"\n"))});
  const Agent peer("peer", {.backends = "tcp", .config = kHeartbeats});
  std::vector<std::byte> memory(8192, std::byte{7});
  std::vector<std::byte> theirs(8192);
  std::thread first([&] { EXPECT_TRUE(pipe.release(20s)); });
  const Region ours = agent.register_memory(dram(memory.data(), memory.size()), {.access = Access::kAll});
  first.join();
  const Region there = peer.register_memory(dram(theirs.data(), theirs.size()), {.access = Access::kAll});
  const Peer to = agent.add_peer(peer.metadata());
  const Transfer move = agent.transfer(agent.block_list(Blocks::at(memory.data(), 8192)),
                                       to.block_list(Blocks::at(theirs.data(), 8192)));
  const auto run = [&] {
    const Status posted = move.post();
    return posted == Status::kInProgress ? move.wait(1s) : posted;
  };
  ASSERT_EQ(run(), Status::kOk);

  std::vector<std::byte> more(8192);
  std::atomic<bool> registered{false};
  std::thread registering([&] {
    const Region region = agent.register_memory(dram(more.data(), more.size()), {.access = Access::kAll});
    registered = true;
  });
  // For two seconds, four times what the peer waits for a sign of life.
  const auto until = std::chrono::steady_clock::now() + 2s;
  int posts = 0;
  for (; std::chrono::steady_clock::now() < until; ++posts) {
    const auto before = std::chrono::steady_clock::now();
    const Status outcome = run();
    EXPECT_EQ(outcome, Status::kOk) << last_error();
    if (outcome != Status::kOk) break;
    EXPECT_LT(std::chrono::steady_clock::now() - before, 500ms);
    EXPECT_EQ(peer.info().find("\"health\":\"lost\""), std::string::npos);
    (void)agent.metadata();  // also asked for meanwhile
  }
  EXPECT_FALSE(registered);
  EXPECT_GT(posts, 10);
  EXPECT_TRUE(pipe.release(20s));
  registering.join();
  EXPECT_TRUE(registered);
}

TEST(AddingABackend, ToAnAgentThatLivesReachesItsRegionsAndPeers) {
  const std::string tokens = "frozen.token_bytes = 1000\n";
  const Agent agent("host", {.listen = "none", .backends = "tcp", .config = kHeartbeats + tokens});
  std::vector<std::byte> memory(8192);
  std::memset(memory.data(), 5, 4096);
  const Region region = agent.register_memory(dram(memory.data(), memory.size()), {.access = Access::kAll});
  const Peer self = agent.add_peer(agent.metadata());
  const auto make = [&](const TransferOptions& options) {
    return agent.transfer(agent.block_list(Blocks::at(memory.data(), 4096)),
                          self.block_list(Blocks::at(memory.data() + 4096, 4096)), options);
  };
  const Transfer before = make({});
  EXPECT_NE(before.route().find("\"backend\":\"tcp\""), std::string::npos);

  agent.add_backend(file_of("as_it_is").c_str());
  EXPECT_NE(agent.info().find("\"name\":\"frozen_later\""), std::string::npos);
  const Peer again = agent.add_peer(agent.metadata());  // it has a token for the region now
  for (const char* backend : {"frozen", "frozen_later"}) {
    std::memset(memory.data() + 4096, 0, 4096);
    const Transfer move = make({.backend = backend});
    EXPECT_NE(move.route().find("\"backend\":\"" + std::string(backend) + "\""), std::string::npos);
    const Status posted = move.post();
    ASSERT_EQ(posted == Status::kInProgress ? move.wait(20s) : posted, Status::kOk) << last_error();
    EXPECT_EQ(std::memcmp(memory.data(), memory.data() + 4096, 4096), 0);
  }
  // Objects made before keep their own way.
  const Status posted = before.post();
  EXPECT_EQ(posted == Status::kInProgress ? before.wait(20s) : posted, Status::kOk);
  try {
    agent.add_backend(file_of("as_it_is").c_str());
    FAIL() << "the same twice";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Status::kAlreadyExists);
  }
}

TEST(AddingABackend, TakesTheNameOfOneThatCouldNotBeUsed) {
  const std::string config = "plugins = \"" + file_of("too_small") + "\"\nfrozen.token_bytes = 1000\n";
  const Agent agent("host", {.listen = "none", .config = kHeartbeats + config});
  std::vector<std::byte> memory(8192);
  std::memset(memory.data(), 5, 4096);
  const Region region = agent.register_memory(dram(memory.data(), memory.size()), {.access = Access::kAll});
  const auto count = [&] {
    const std::string info = agent.info();
    const std::string name = "\"name\":\"frozen\"";
    size_t found = 0;
    for (size_t at = info.find(name); at != std::string::npos; at = info.find(name, at + 1)) ++found;
    return found;
  };
  ASSERT_EQ(count(), 1u) << agent.info();
  agent.add_backend(file_of("as_it_is").c_str());
  EXPECT_EQ(count(), 1u) << agent.info();
  const Peer self = agent.add_peer(agent.metadata());
  const Transfer move =
      agent.transfer(agent.block_list(Blocks::at(memory.data(), 4096)),
                     self.block_list(Blocks::at(memory.data() + 4096, 4096)), {.backend = "frozen"});
  const Status posted = move.post();
  ASSERT_EQ(posted == Status::kInProgress ? move.wait(20s) : posted, Status::kOk) << last_error();
  EXPECT_EQ(std::memcmp(memory.data(), memory.data() + 4096, 4096), 0);
}

TEST(AddingABackend, KnowsWhatPeersSaidOfItBeforeItWasThere) {
  const std::string tokens = "frozen.token_bytes = 1000\n";
  const Agent agent("host", {.listen = "none", .backends = "memory", .config = tokens});
  std::vector<std::byte> memory(8192);
  const Region region = agent.register_memory(dram(memory.data(), memory.size()), {.access = Access::kAll});
  agent.add_backend(file_of("as_it_is").c_str());
  const auto blob = agent.metadata();

  // Another agent reads that blob without the plugin, and gets it afterwards. It reaches nothing, since the plugin
  // copies within one agent; but it has looked at the address that the blob gives.
  const Agent reader("reader", {.listen = "none", .backends = "tcp", .config = kHeartbeats + tokens});
  const Peer peer = reader.add_peer(blob);
  const Region mine = reader.register_memory(dram(memory.data(), memory.size()), {.access = Access::kAll});
  reader.add_backend(file_of("as_it_is").c_str());
  try {
    (void)reader.transfer(reader.block_list(Blocks::at(memory.data(), 4096)),
                          peer.block_list(Blocks::at(memory.data() + 4096, 4096)), {.backend = "frozen"});
    FAIL() << "it reaches another agent";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("it reaches no agent but this one"), std::string::npos)
        << error.what();
  }
}

TEST(AddingABackend, OneThatCannotBeTakenSaysWhyAndTheAgentGoesOn) {
  const Agent agent("host", {.listen = "none", .backends = "memory"});
  for (const auto& [file, reason] :
       {std::pair<std::string, std::string>{"/no/such/plugin.so", "/no/such/plugin.so"},
        {file_of("too_small"), "table 'data' of frozen has"},
        {"nonesuch", "there is no plugin libtowline_nonesuch.so"}}) {
    try {
      agent.add_backend(file.c_str());
      FAIL() << file;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(reason), std::string::npos) << error.what();
    }
  }
  EXPECT_NE(agent.info().find("\"usable\":true"), std::string::npos);
}

TEST(AddingABackend, ThatWasRefusedLeavesNoSettingBehind) {
  const Agent agent("host", {.listen = "none", .backends = "memory"});
  for (const auto& [plugin, reason] :
       {std::pair<std::string, std::string>{"tcp?sockets=many", "tuning.tcp.sockets"},
        {"tcp?sockts=4", "sockts"},
        {"tcp?sockets=2&lanes", "\"lanes\" is no setting"}}) {
    try {
      agent.add_backend(plugin.c_str());
      FAIL() << plugin;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(reason), std::string::npos) << error.what();
    }
  }
  agent.add_backend("tcp");
  EXPECT_NE(agent.info().find("\"name\":\"tcp\""), std::string::npos);
}

}  // namespace
}  // namespace towline
