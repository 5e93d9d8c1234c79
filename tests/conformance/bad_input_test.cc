// Every bad argument gets its own clear error, and everything else goes on.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <random>

#include "transport_fixture.h"

namespace towline::conformance {
namespace {

// Runs `call`, expects an Error with this code whose text holds `words`.
template <class Call>
void expect_error(Status code, const std::string& words, Call&& call) {
  try {
    call();
    ADD_FAILURE() << "no error; expected " << status_name(code);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    EXPECT_NE(std::string(error.what()).find(words), std::string::npos)
        << error.what() << "\nlacks: " << words;
  }
}

// "tcp.port_range" as part of a variable's name: "TCP_PORT_RANGE".
std::string upper_of(std::string key) {
  for (char& c : key) c = c == '.' ? '_' : static_cast<char>(std::toupper(c));
  return key;
}

class BadInput : public ::testing::Test {
 protected:
  static constexpr uint64_t kBytes = 1 << 20;
  BadInput()
      : agent_("bad-input", {.listen = "127.0.0.1:0"}),
        memory_(kBytes, false),
        region_(agent_.register_memory(dram(memory_.data(), kBytes), {.access = Access::kAll})),
        self_(agent_.add_peer(agent_.metadata())),
        mine_(agent_.block_list(blocks_of(memory_.data(), kBytes, 4096))),
        theirs_(self_.block_list(blocks_of(memory_.data(), kBytes, 4096))) {}

  // After whatever went wrong the agent still moves bytes to itself.
  void TearDown() override {
    stamp(memory_.data(), 4096, 1);
    const Transfer move = agent_.transfer(mine_[Range{0, 1, 1}], theirs_[Range{7, 1, 1}]);
    const Status posted = move.post();
    ASSERT_EQ(posted == Status::kInProgress ? move.wait(20s) : posted, Status::kOk);
    EXPECT_EQ(std::memcmp(memory_.data(), memory_.data() + 7 * 4096, 4096), 0);
  }

  Agent agent_;
  Buffer memory_;
  Region region_;
  Peer self_;
  BlockList mine_;
  BlockList theirs_;
};

TEST_F(BadInput, NullPointersAreRefusedByEveryFunctionThatTakesThem) {
  EXPECT_EQ(towline_agent_create(nullptr, nullptr, nullptr), TOWLINE_INVALID_ARGUMENT);
  towline_agent_t* agent = nullptr;
  EXPECT_EQ(towline_agent_create("x", nullptr, nullptr), TOWLINE_INVALID_ARGUMENT);
  EXPECT_EQ(towline_agent_create(nullptr, nullptr, &agent), TOWLINE_INVALID_ARGUMENT);
  EXPECT_NE(std::string(towline_last_error()).find("name is null"), std::string::npos)
      << towline_last_error();
  EXPECT_EQ(towline_agent_progress(nullptr), TOWLINE_INVALID_ARGUMENT);
  EXPECT_EQ(towline_agent_wait(nullptr, 0), TOWLINE_INVALID_ARGUMENT);
  EXPECT_EQ(towline_region_register(agent_.native(), nullptr, 4096, nullptr, nullptr),
            TOWLINE_INVALID_ARGUMENT);
  EXPECT_EQ(towline_peer_add(agent_.native(), nullptr, 10, nullptr), TOWLINE_INVALID_ARGUMENT);
  EXPECT_EQ(towline_peer_connect(agent_.native(), nullptr, 0, nullptr), TOWLINE_INVALID_ARGUMENT);
  EXPECT_EQ(towline_transfer_create(agent_.native(), nullptr, nullptr, nullptr, nullptr),
            TOWLINE_INVALID_ARGUMENT);
  EXPECT_EQ(towline_transfer_post(nullptr), TOWLINE_INVALID_ARGUMENT);
  EXPECT_EQ(towline_transfer_poll(nullptr), TOWLINE_INVALID_ARGUMENT);
  EXPECT_EQ(towline_notice_send(nullptr, nullptr, 0), TOWLINE_INVALID_ARGUMENT);
  EXPECT_EQ(towline_notice_receive(nullptr, nullptr, 0), TOWLINE_INVALID_ARGUMENT);
  EXPECT_EQ(towline_agent_destroy(nullptr), TOWLINE_OK) << "destroying nothing is harmless";
  EXPECT_EQ(towline_transfer_destroy(nullptr, 0), TOWLINE_OK);
}

TEST_F(BadInput, AgentsCheckTheirOptions) {
  expect_error(Status::kInvalidArgument, "name", [] { Agent agent(""); });
  expect_error(Status::kInvalidArgument, "255", [] { Agent agent(std::string(256, 'n')); });
  expect_error(Status::kInvalidArgument, "workers", [] { Agent agent("a", {.workers = 99}); });
  expect_error(Status::kNotFound, "no backend 'warp'", [] { Agent agent("a", {.backends = "warp"}); });
  expect_error(Status::kInvalidArgument, "options.config",
               [] { Agent agent("a", {.config = "this is not TOML ["}); });
  expect_error(Status::kInvalidArgument, "not an address",
               [] { Agent agent("a", {.listen = "not an address"}); });
  expect_error(Status::kInvalidArgument, "log.level",
               [] { Agent agent("a", {.config = "log.level = \"loud\"\n"}); });
  for (const char* setting :
       {"tuning.tcp.sockets = 0", "tuning.tcp.user_timeout = \"soon\"", "tcp.listen = \"not an address\"",
        "tcp.port_range = \"high\"", "tcp.checksum = \"maybe\"", "tuning.shm.paths = \"nonsense\"",
        "tuning.memory.ring_bytes = 3", "tuning.posix.threads = \"many\"", "faults = \"nonsense\""}) {
    const std::string key(setting, std::strcspn(setting, " "));
    expect_error(Status::kInvalidArgument, "set by the program: " + key,
                 [&] { Agent agent("a", {.config = setting}); });
    setenv(("TOWLINE_" + upper_of(key)).c_str(), "not so", 1);
    expect_error(Status::kInvalidArgument, "environment TOWLINE_" + upper_of(key), [] { Agent agent("a"); });
    unsetenv(("TOWLINE_" + upper_of(key)).c_str());
  }
  towline_agent_options_t options{};
  towline_agent_t* agent = nullptr;
  EXPECT_EQ(towline_agent_create("a", &options, &agent), TOWLINE_INVALID_ARGUMENT);
  EXPECT_NE(std::string(towline_last_error()).find("struct_size"), std::string::npos);
}

TEST_F(BadInput, NamesMayHoldOddBytes) {
  const std::string odd = "\x01\xff\"\\ \n\xc3";
  Agent agent(odd, {.listen = "127.0.0.1:0"});
  EXPECT_EQ(agent.name(), odd);
  const Peer peer = agent_.add_peer(agent.metadata());
  EXPECT_EQ(peer.name(), odd);
  EXPECT_NO_THROW((void)agent_.info());
}

TEST_F(BadInput, APortInUseIsNamed) {
  const std::string taken = agent_.address();
  expect_error(Status::kAddressInUse, taken.substr(taken.rfind(':')),
               [&] { Agent agent("second", {.listen = taken}); });
}

TEST_F(BadInput, RegionsCheckTheirRange) {
  expect_error(Status::kInvalidArgument, "",
               [&] { (void)agent_.register_memory(dram(memory_.data(), 0), {.access = Access::kAll}); });
  expect_error(Status::kInvalidArgument, "",
               [&] { (void)agent_.register_memory(dram(nullptr, 4096), {.access = Access::kAll}); });
  EXPECT_THROW(
      (void)agent_.register_memory(dram(memory_.data(), uint64_t{1} << 63), {.access = Access::kAll}), Error);
  EXPECT_THROW((void)agent_.register_memory(dram(memory_.data(), UINT64_MAX), {.access = Access::kAll}),
               Error);
  EXPECT_THROW((void)agent_.register_memory({memory_.data(), 4096, Kind::kVram, 0}, {.access = Access::kAll}),
               Error);
}

TEST_F(BadInput, OverlappingRegionsEachKeepTheirRights) {
  const Region inner = agent_.register_memory(dram(memory_.data() + 4096, 8192), {.access = Access::kRead});
  const Region same = agent_.register_memory(dram(memory_.data(), kBytes), {.access = Access::kAll});
  EXPECT_NE(inner.key(), region_.key());
  EXPECT_NE(same.key(), region_.key());
}

TEST_F(BadInput, MemoryThatMayBeInUseIsNotMoved) {
  const Buffer memory(16 * 4096, false);
  {
    const Region plain = agent_.register_memory(dram(memory.data() + 4096, 4096), {.access = Access::kAll});
    expect_error(Status::kBusy, "overlaps", [&] {
      (void)agent_.register_memory(dram(memory.data(), memory.size()),
                                   {.access = Access::kAll, .share = true});
    });
  }
  const Region shared =
      agent_.register_memory(dram(memory.data(), memory.size()), {.access = Access::kAll, .share = true});
  const Region within = agent_.register_memory(dram(memory.data() + 4096, 4096), {.access = Access::kAll});
  EXPECT_NO_THROW((void)agent_.register_memory(dram(memory.data(), memory.size()),
                                               {.access = Access::kAll, .share = true}));
}

TEST_F(BadInput, BlockListsNameTheEntryThatIsWrong) {
  Blocks good = Blocks::at(memory_.data(), 4096);
  Blocks zero = Blocks::at(memory_.data(), 0);
  const Blocks both[] = {good, zero};
  expect_error(Status::kInvalidArgument, "1", [&] { (void)agent_.block_list(both); });
  expect_error(Status::kOutOfRange, "",
               [&] { (void)agent_.block_list(Blocks::at(memory_.data() + kBytes - 1, 2)); });
  expect_error(Status::kOutOfRange, "",
               [&] { (void)agent_.block_list(Blocks::at(memory_.data(), 4096).repeat(257, 4096)); });
  EXPECT_THROW((void)agent_.block_list(Blocks::at(memory_.data(), uint64_t{1} << 63)), Error);
  EXPECT_THROW(
      (void)agent_.block_list(Blocks::at(memory_.data(), 4096).repeat(uint64_t{1} << 40, UINT64_MAX)), Error);
  EXPECT_THROW((void)agent_.block_list(Blocks::at(memory_.data(), 4096, Kind::kVram)), Error);
  EXPECT_THROW((void)agent_.block_list(Blocks::at(memory_.data(), 4096).repeat(0, 4096)), Error);
}

TEST_F(BadInput, TransfersCheckPicksAndSizes) {
  const std::vector<uint32_t> beyond = {0, 1, 256};
  expect_error(Status::kOutOfRange, "256", [&] {
    (void)agent_.transfer(mine_[beyond], theirs_[Range{0, 1, 3}]);
  });
  const std::vector<int64_t> negative = {-1};
  expect_error(Status::kOutOfRange, "", [&] {
    (void)agent_.transfer(mine_[negative], theirs_[Range{0, 1, 1}]);
  });
  expect_error(Status::kMismatch, "", [&] {
    (void)agent_.transfer(mine_[Range{0, 1, 2}], theirs_[Range{0, 1, 3}]);
  });
  expect_error(Status::kInvalidArgument, "", [&] {
    (void)agent_.transfer(mine_[std::vector<uint32_t>{}], theirs_[std::vector<uint32_t>{}]);
  });
  const std::vector<uint32_t> twice = {5, 5};
  expect_error(Status::kInvalidArgument, "", [&] {
    (void)agent_.transfer(mine_[Range{0, 1, 2}], theirs_[twice]);
  });
  const BlockList odd = self_.block_list(Blocks::at(memory_.data(), 4093).repeat(3, 4093));
  expect_error(Status::kMismatch, "4093", [&] {
    (void)agent_.transfer(mine_[Range{0, 1, 3}], odd[Range{0, 1, 3}]);
  });
  expect_error(Status::kLimitExceeded, "4611686018427387904", [&] {
    (void)agent_.transfer(mine_[Range{0, 1, uint64_t{1} << 62}], theirs_[Range{0, 1, uint64_t{1} << 62}]);
  });
  expect_error(Status::kInvalidArgument, "both lists are of peers", [&] {
    (void)agent_.transfer(theirs_[Range{0, 1, 1}], theirs_[Range{1, 1, 1}]);
  });
  expect_error(Status::kNoRoute, "tcp", [&] {
    (void)agent_.transfer(mine_[Range{0, 1, 1}], theirs_[Range{1, 1, 1}], {.backend = "nonesuch"});
  });
}

TEST_F(BadInput, MoreThanTenMillionPicksAreRefused) {
  const std::vector<uint32_t> many(10'000'001, 0);
  expect_error(Status::kLimitExceeded, "10", [&] { (void)agent_.transfer(mine_[many], theirs_[many]); });
}

TEST_F(BadInput, BlobsThatAreCutOrFlippedAreRefused) {
  Agent other("other", {.listen = "127.0.0.1:0"});
  const auto blob = other.metadata();
  for (size_t bytes = 0; bytes < blob.size(); bytes += 7) {
    EXPECT_THROW((void)agent_.add_peer(BytesView(blob.data(), bytes)), Error) << bytes;
  }
  std::mt19937 random(3);
  for (int i = 0; i < 500; ++i) {
    auto flipped = blob;
    flipped[random() % flipped.size()] ^= std::byte{static_cast<unsigned char>(1u << (random() % 8))};
    EXPECT_THROW((void)agent_.add_peer(flipped), Error);
  }
}

TEST_F(BadInput, UnreachableAndSilentAddressesSaySo) {
  EXPECT_THROW((void)agent_.connect("127.0.0.1:1", 2s), Error);
  EXPECT_THROW((void)agent_.connect("no.such.host.invalid:7777", 2s), Error);
  EXPECT_THROW((void)agent_.connect("nonsense", 2s), Error);
  EXPECT_THROW((void)agent_.connect("unix:/no/such/socket", 2s), Error);
}

TEST_F(BadInput, ListsOfMemoryThatIsDeregisteredAreStale) {
  const Buffer memory(8192, false);
  Region region = agent_.register_memory(dram(memory.data(), memory.size()), {.access = Access::kAll});
  const BlockList gone = agent_.block_list(Blocks::at(memory.data(), 4096));
  ASSERT_EQ(region.deregister(5s), Status::kOk);
  try {
    (void)agent_.transfer(gone, theirs_[Range{0, 1, 1}]);
    ADD_FAILURE() << "the memory may be gone";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("deregistered"), std::string::npos) << error.what();
  }
}

TEST_F(BadInput, HandlesOutliveTheirAgentAndSayClosed) {
  auto agent = std::make_unique<Agent>("short-lived", AgentOptions{.listen = "127.0.0.1:0"});
  const Buffer memory(8192, false);
  Region region = agent->register_memory(dram(memory.data(), memory.size()), {.access = Access::kAll});
  const Peer self = agent->add_peer(agent->metadata());
  const BlockList here = agent->block_list(Blocks::at(memory.data(), 4096));
  const BlockList there = self.block_list(Blocks::at(memory.data() + 4096, 4096));
  const Transfer move = agent->transfer(here, there);
  agent.reset();
  EXPECT_EQ(move.post(), Status::kClosed);
  EXPECT_EQ(self.send("late"), Status::kClosed);
  EXPECT_EQ(region.deregister(1s), Status::kOk);
}

TEST_F(BadInput, ListsAreOfTheirAgentAloneAlsoWhenItIsGone) {
  auto agent = std::make_unique<Agent>("short-lived", AgentOptions{.listen = "127.0.0.1:0"});
  const Buffer memory(8192, false);
  Region region = agent->register_memory(dram(memory.data(), memory.size()), {.access = Access::kAll});
  const BlockList here = agent->block_list(Blocks::at(memory.data(), 4096));
  const auto refused = [&] {
    expect_error(Status::kInvalidArgument, "the 'from' list belongs to another agent", [&] {
      (void)agent_.transfer(here, theirs_[Range{0, 1, 1}]);
    });
    expect_error(Status::kInvalidArgument, "the 'to' list belongs to another agent", [&] {
      (void)agent_.transfer(mine_[Range{0, 1, 1}], here);
    });
  };
  refused();
  EXPECT_EQ(region.deregister(1s), Status::kOk);
  agent.reset();
  refused();
  EXPECT_EQ(towline_block_list_bytes(here.native()), 4096U);
}

TEST_F(BadInput, InAForkedChildHandlesAnswerForked) {
  const Transfer move = agent_.transfer(mine_[Range{0, 1, 1}], theirs_[Range{1, 1, 1}]);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    bool right = move.post() == Status::kForked && self_.send("x") == Status::kForked;
    try {
      (void)agent_.register_memory(dram(memory_.data(), 4096), {.access = Access::kAll});
      right = false;
    } catch (const Error& error) {
      right = right && error.code() == Status::kForked;
    }
    right = right && towline_agent_destroy(agent_.native()) == TOWLINE_FORKED;
    _exit(right ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_EQ(move.post() == Status::kInProgress ? move.wait(20s) : Status::kOk, Status::kOk)
      << "the parent is undisturbed";
}

TEST(Settings, InfiniteTimesNeverCome) {
  const std::string infinite =
      "[connection]\ntimeout = \"infinite\"\n[tuning.connection]\nidle = \"infinite\"\n"
      "[peer]\nheartbeat = \"infinite\"\nsuspect = \"infinite\"\nlost = \"infinite\"\n"
      "[tuning.tcp]\nhandshake_timeout = \"infinite\"\nuser_timeout = \"infinite\"\n"
      "[progress]\nspin = \"infinite\"\n[tuning.posix]\nspin = \"infinite\"\n";
  Agent agent("patient", {.listen = "127.0.0.1:0", .backends = "tcp", .config = infinite});
  Agent other("other", {.listen = "127.0.0.1:0", .backends = "tcp", .config = infinite});
  const Peer peer = agent.connect(other.address());
  ASSERT_EQ(peer.send("hello"), Status::kOk) << last_error();
  Notice notice;
  while (other.receive(notice) == Status::kAgain) ASSERT_EQ(other.wait(20s), Status::kOk);
  // Waits without a limit poll every few milliseconds.
  for (int look = 0; look < 5; ++look) EXPECT_EQ(agent.wait(5ms), Status::kNotYet);
  EXPECT_EQ(peer.health(), Health::kAlive);
  EXPECT_NE(agent.info().find("\"backend\":\"tcp\""), std::string::npos) << agent.info();
}

TEST(Removing, APeerTwiceOverIsOneRemoval) {
  Agent agent("remover", {.listen = "none"});
  Agent other("removed", {.listen = "none"});
  Peer peer = agent.add_peer(other.metadata());
  peer.remove();  // and its destructor has nothing left to do
  EXPECT_EQ(agent.add_peer(other.metadata()).name(), "removed");
}

}  // namespace
}  // namespace towline::conformance
