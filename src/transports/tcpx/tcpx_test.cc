// Two agents' cores in one process over tcpx: that payload takes the way it should, through a pool however small.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <string>

#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "transports/tcp/test_support.h"
#include "transports/tcpx/ladder.h"
#include "transports/tcpx/met.h"

extern "C" const towline_plugin_v1_t* towline_plugin_v1(uint32_t number);

namespace towline::tcpx {
namespace {

using towline::testing::FakeAgent;
using towline::testing::FakeLink;
using towline::testing::FakePlan;
using towline::testing::turn_until;

constexpr std::size_t kBytes = 4u << 20;

class TcpxTest : public ::testing::Test {
 protected:
  void open(FakeAgent::Settings settings) {
    settings["tuning.tcpx.listen"] = "127.0.0.1:0";
    a = std::make_unique<FakeAgent>(towline_plugin_v1(0), "a", settings, 1);
    b = std::make_unique<FakeAgent>(towline_plugin_v1(0), "b", settings, 1);
    ASSERT_EQ(a->status, Status::kOk) << a->failure;
    ASSERT_EQ(b->status, Status::kOk) << b->failure;
    link = &a->connect(*b, 20 * kSecondNs, 0);
    ASSERT_TRUE(turn([&] { return link->ups + link->downs != 0; }));
    ASSERT_EQ(link->ups, 1u) << link->text;
    local.resize(kBytes);
    std::iota(local.begin(), local.end(), uint8_t{3});
    for (std::size_t i = 0; i < kBytes; i += 241) local[i] = static_cast<uint8_t>(i >> 7);
    remote.assign(kBytes, 0);
    key = b->add(remote.data(), remote.size());
  }
  bool turn(const std::function<bool()>& done) { return turn_until({a.get(), b.get()}, done); }
  std::string describe(FakeAgent& agent, const FakeLink& of) {
    char json[4096] = "";
    EXPECT_EQ(agent.connections->describe(of.connection, json, sizeof json), TOWLINE_OK);
    return json;
  }
  void wait_for_flow() {
    ASSERT_TRUE(turn([&] {
      return describe(*a, *link).find("payload by") != std::string::npos && b->accepted_link() &&
             describe(*b, *b->accepted_link()).find("payload by") != std::string::npos;
    }));
  }
  void move(uint32_t block) {
    FakePlan plan(key);
    for (std::size_t at = 0; at < local.size(); at += block)
      plan.add(local.data() + at, remote.data() + at,
               static_cast<uint32_t>(std::min<std::size_t>(block, local.size() - at)));
    const std::vector<uint8_t> sent = local;
    towline_prepared* write = a->prepare(*link, plan.plan(), TOWLINE_WRITE);
    ASSERT_EQ(a->submit(write, 1, plan.bytes(), "after the data"), Status::kInProgress);
    ASSERT_TRUE(turn([&] { return a->ended(1) && !b->accepted_link()->messages.empty(); }));
    EXPECT_EQ(a->outcome(1), Status::kOk);
    EXPECT_EQ(remote, sent);
    std::fill(local.begin(), local.end(), uint8_t{0});
    towline_prepared* read = a->prepare(*link, plan.plan(), TOWLINE_READ);
    ASSERT_EQ(a->submit(read, 2, plan.bytes()), Status::kInProgress);
    ASSERT_TRUE(turn([&] { return a->ended(2); }));
    EXPECT_EQ(a->outcome(2), Status::kOk);
    EXPECT_EQ(local, sent);
    a->results.clear();
  }
  // A number in front of a word of the flow's description.
  uint64_t number(const std::string& json, const std::string& word) {
    const std::size_t at = json.find(" " + word);
    if (at == std::string::npos) return 0;
    const std::size_t begin = json.find_last_not_of("0123456789", at - 1) + 1;
    return std::stoull(json.substr(begin, at - begin));
  }

  std::unique_ptr<FakeAgent> a;
  std::unique_ptr<FakeAgent> b;
  FakeLink* link = nullptr;
  std::vector<uint8_t> local;
  std::vector<uint8_t> remote;
  uint64_t key = 0;
};

TEST_F(TcpxTest, LargePayloadArrivesAsFragmentsBothWaysAndEveryTokenComesBack) {
  open({{"tuning.tcpx.source", "emulated"}});
  wait_for_flow();
  move(65536);
  for (const std::string& json : {describe(*a, *link), describe(*b, *b->accepted_link())}) {
    EXPECT_GT(number(json, "fragments"), 1000u) << json;
    EXPECT_NE(json.find(" 0 held"), std::string::npos) << json;
  }
}

TEST_F(TcpxTest, APoolOfFourPagesMovesEveryByte) {
  open({{"tuning.tcpx.source", "emulated"}, {"tuning.tcpx.pool_bytes", "16KiB"}});
  wait_for_flow();
  move(65536);
}

TEST_F(TcpxTest, SeveralLanesOfTwoSocketsEach) {
  open({{"tuning.tcpx.source", "emulated"}, {"tuning.tcpx.sockets", "4"}, {"tuning.tcpx.bulk_bytes", "0"}});
  wait_for_flow();
  ASSERT_TRUE(turn([&] {
    const std::string json = describe(*a, *link);
    return json.find("\"lanes\": 4") != std::string::npos &&
           describe(*b, *b->accepted_link()).find("\"lanes\": 4") != std::string::npos;
  })) << describe(*a, *link);
  move(16384);
}

TEST_F(TcpxTest, SmallPayloadGoesWithItsHeader) {
  open({{"tuning.tcpx.source", "emulated"}, {"tuning.tcpx.least_bytes", "64MiB"}});
  wait_for_flow();
  move(65536);
  EXPECT_EQ(number(describe(*b, *b->accepted_link()), "fragments"), 0u);
}

// More requests than the answers' windows hold, through a pool that is always dry: each answer finds its request.
TEST_F(TcpxTest, ManyReadsAtOnceAllEnd) {
  open({{"tuning.tcpx.source", "emulated"}, {"tuning.tcpx.pool_bytes", "32KiB"}});
  wait_for_flow();
  constexpr std::size_t kReads = 64;
  constexpr std::size_t kEach = kBytes / kReads;
  std::iota(remote.begin(), remote.end(), uint8_t{5});
  for (std::size_t i = 0; i < remote.size(); i += 197) remote[i] = static_cast<uint8_t>(i >> 9);
  std::vector<std::unique_ptr<FakePlan>> plans;
  for (uint64_t i = 0; i < kReads; ++i) {
    plans.push_back(std::make_unique<FakePlan>(key));
    plans.back()->add(local.data() + i * kEach, remote.data() + i * kEach, kEach);
    ASSERT_EQ(a->submit(a->prepare(*link, plans.back()->plan(), TOWLINE_READ), i + 1, kEach),
              Status::kInProgress);
  }
  ASSERT_TRUE(turn([&] {
    for (uint64_t i = 0; i < kReads; ++i)
      if (!a->ended(i + 1)) return false;
    return true;
  }));
  for (uint64_t i = 0; i < kReads; ++i) EXPECT_EQ(a->outcome(i + 1), Status::kOk);
  EXPECT_EQ(local, remote);
}

TEST_F(TcpxTest, ANoticeOfAnyBytesArrivesWholeAfterTheData) {
  open({{"tuning.tcpx.source", "emulated"}});
  wait_for_flow();
  const std::string notice("\0\x01 all \0 of it \xff\0", 16);
  FakePlan plan(key);
  plan.add(local.data(), remote.data(), kBytes);
  ASSERT_EQ(a->submit(a->prepare(*link, plan.plan(), TOWLINE_WRITE), 1, plan.bytes(), notice),
            Status::kInProgress);
  bool after = false;
  b->accepted_link()->on_message = [&](std::string_view text) { after = text == notice && remote == local; };
  ASSERT_TRUE(turn([&] { return a->ended(1) && after; }));
}

TEST_F(TcpxTest, ManySeeds) {
  for (int seed = 0; seed < 8; ++seed) {
    open({{"tuning.tcpx.source", "emulated"},
          {"tuning.tcpx.pool_bytes", "64KiB"},
          {"tuning.tcpx.least_bytes", "1"},
          {"tuning.tcpx.seed", std::to_string(seed)}});
    wait_for_flow();
    move(seed % 2 == 0 ? 4093 : 500000);
    a.reset();
    b.reset();
  }
}

TEST_F(TcpxTest, MappedAndCopied) {
  for (const char* source : {"mapped", "copy"}) {
    open({{"tuning.tcpx.source", source}});
    wait_for_flow();
    move(65536);
    a.reset();
    b.reset();
  }
}

TEST_F(TcpxTest, AWrongSettingIsNamed) {
  const FakeAgent agent(towline_plugin_v1(0), "a", {{"tuning.tcpx.source", "telepathy"}}, 1);
  EXPECT_NE(agent.status, Status::kOk);
  EXPECT_NE(agent.failure.find("tuning.tcpx.source = \"telepathy\""), std::string::npos) << agent.failure;
}

TEST_F(TcpxTest, MemoryOfAGpuThatCannotBeHadIsRefusedWithTheReason) {
  const auto why = [](const char* source, const char* pool) {
    const FakeAgent agent(towline_plugin_v1(0), "a",
                          {{"tuning.tcpx.source", source}, {"tuning.tcpx.pool", pool}}, 1);
    EXPECT_NE(agent.status, Status::kOk);
    return agent.failure;
  };
  EXPECT_NE(why("mapped", "gpu").find("host memory only"), std::string::npos) << why("mapped", "gpu");
  EXPECT_NE(why("emulated", "gpu").find("no open backend"), std::string::npos) << why("emulated", "gpu");
  EXPECT_NE(why("emulated", "moon").find("tuning.tcpx.pool = \"moon\""), std::string::npos)
      << why("emulated", "moon");
  const std::string one = why("devmem", "auto");  // one reason, not one for each sort of memory
  EXPECT_EQ(one.find("tuning.tcpx.interface"), one.rfind("tuning.tcpx.interface")) << one;
}

TEST_F(TcpxTest, TheBackendSaysWhichSourceItUses) {
  open({});
  char json[4096] = "";
  ASSERT_EQ(towline_plugin_v1(0)->describe(a->backend, json, sizeof json), TOWLINE_OK);
  const nlohmann::json described = nlohmann::json::parse(json);
  const std::string source = described["source"];
  EXPECT_EQ(source, "copy") << "without a NIC; mapped costs more, and is used where it is named";
  EXPECT_EQ(described["never_met"].size(), std::size(kNeverMet));
  for (const auto& tried : described["tried"]) EXPECT_FALSE(std::string(tried["why_not"]).empty());
}

}  // namespace
}  // namespace towline::tcpx
