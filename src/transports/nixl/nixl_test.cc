// The backend as the core sees it, over engines that copy within this process, on good days and bad ones.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <numeric>

#include "towline/plugin/v1.h"
#include "transports/tcp/plugin.h"
#include "transports/tcp/test_support.h"

extern "C" const towline_plugin_v1_t* towline_plugin_v1(uint32_t number);

namespace towline::nixl_net {
namespace {

using towline::testing::FakeAgent;
using towline::testing::FakeLink;
using towline::testing::FakePlan;
using towline::testing::turn_until;

constexpr std::size_t kBytes = 1 << 20;

class NixlNetTest : public ::testing::Test {
 protected:
  void SetUp() override {
    FakeAgent::builtin = towline_tcp_plugin();
    library_ = ::dlopen(TOWLINE_FAKE_NIXL_NET, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    ASSERT_NE(library_, nullptr) << ::dlerror();  // NOLINT(concurrency-mt-unsafe)
    alive_before_ = counted("alive");
    misused_before_ = counted("misused");
  }
  void TearDown() override {
    for (FakeAgent* agent : {a.get(), b.get()})
      if (agent != nullptr) agent->close();
    EXPECT_EQ(counted("misused"), misused_before_);
    EXPECT_EQ(counted("alive"), alive_before_ + kept);
    ::dlclose(library_);
  }

  template <class Function>
  [[nodiscard]] Function* get(const std::string& name) const {
    return reinterpret_cast<Function*>(::dlsym(library_, ("fake_nixl_net_" + name).c_str()));
  }
  void fail(const char* what, int times = 1) const { get<void(const char*, int)>("fail")(what, times); }
  [[nodiscard]] int counted(const char* what) const { return get<int()>(what)(); }

  static FakeAgent::Settings settings(const FakeAgent::Settings& more = {}) {
    FakeAgent::Settings all = {{"nixl_net.library", TOWLINE_FAKE_NIXL_NET},
                               {"tuning.nixl_net.listen", "127.0.0.1:0"}};
    all.insert(more.begin(), more.end());
    return all;
  }
  static std::string refusal(Status status, const FakeAgent::Settings& of) {
    const FakeAgent agent(towline_plugin_v1(0), "refused", of);
    EXPECT_EQ(agent.status, status) << agent.failure;
    return agent.failure;
  }

  // Two agents, memory of each, and a's way to b's memory.
  void open(const FakeAgent::Settings& more = {}) {
    a = std::make_unique<FakeAgent>(towline_plugin_v1(0), "a", settings(more));
    b = std::make_unique<FakeAgent>(towline_plugin_v1(0), "b", settings(more));
    ASSERT_EQ(a->status, Status::kOk) << a->failure;
    ASSERT_EQ(b->status, Status::kOk) << b->failure;
    from.resize(kBytes);
    std::iota(from.begin(), from.end(), uint8_t{3});
    to.assign(kBytes, 0);
    here = region(*a, from);
    there = region(*b, to);
    mine = add(*a, here);
    theirs = add(*b, there);
  }
  void connect() {
    link = &a->connect(*b);
    ASSERT_TRUE(turn([&] { return link->ups + link->downs != 0 && b->accepted_link() != nullptr; }));
    ASSERT_EQ(link->ups, 1u) << link->text;
    ASSERT_EQ(import(), Status::kOk) << a->failure;
  }
  void close() {
    if (imported != nullptr) a->memory->unimport(link->connection, imported);
    a->memory->remove(a->backend, mine);
    b->memory->remove(b->backend, theirs);
  }
  bool turn(const std::function<bool()>& done) { return turn_until({a.get(), b.get()}, done); }

  static towline_region_args region(FakeAgent& agent, std::vector<uint8_t>& memory, uint32_t flags = 0) {
    auto args = plugin::sized<towline_region_args>();
    args.region.key = agent.add(memory.data(), memory.size());
    args.region.address = reinterpret_cast<uint64_t>(memory.data());
    args.region.bytes = memory.size();
    args.region.access = TOWLINE_ACCESS_ALL;
    args.region.flags = flags;
    args.fd = -1;
    return args;
  }
  static towline_registration* add(FakeAgent& agent, const towline_region_args& args) {
    towline_registration* registration = nullptr;
    std::vector<uint8_t> token(TOWLINE_MAX_TOKEN_BYTES);
    std::size_t bytes = token.size();
    EXPECT_EQ(agent.memory->add(agent.backend, &args, &registration, token.data(), &bytes), TOWLINE_OK)
        << agent.failure;
    return registration;
  }
  Status import() {
    int32_t status = TOWLINE_AGAIN;
    (void)turn([&] {
      status = a->memory->import(link->connection, &there, nullptr, 0, &imported, how);
      return status != TOWLINE_AGAIN;
    });
    return static_cast<Status>(status);
  }
  towline_prepared* prepare(FakePlan& plan, uint32_t op) {
    const towline_prepare_args args = {sizeof args, plan.plan(), &mine, &imported, op, 0};
    towline_prepared* prepared = nullptr;
    EXPECT_EQ(a->data->prepare(link->connection, &args, &prepared), TOWLINE_OK) << a->failure;
    return prepared;
  }
  // Its status, with the fences in `fences`.
  Status finish(towline_prepared* prepared, std::string_view message = {}) {
    const uint64_t cookie = ++cookies;
    const Status begun = a->submit(prepared, cookie, prepared->plan->bytes, message);
    if (begun != Status::kInProgress) return begun;
    EXPECT_TRUE(turn([&] { return a->ended(cookie); }));
    fences = a->results.at(cookie).fences;
    return a->outcome(cookie);
  }
  Status move(uint32_t op, std::string_view message = {}, std::size_t blocks = 1) {
    FakePlan plan(there.region.key);
    for (std::size_t i = 0; i < blocks; ++i)  // not adjacent: every second half block
      plan.add(from.data() + i * (kBytes / blocks), to.data() + i * (kBytes / blocks), kBytes / blocks / 2);
    towline_prepared* const prepared = prepare(plan, op);
    const Status status = finish(prepared, message);
    a->data->unprepare(prepared);
    return status;
  }

  std::unique_ptr<FakeAgent> a;
  std::unique_ptr<FakeAgent> b;
  FakeLink* link = nullptr;
  std::vector<uint8_t> from;
  std::vector<uint8_t> to;
  towline_region_args here = {};
  towline_region_args there = {};
  towline_registration* mine = nullptr;
  towline_registration* theirs = nullptr;
  towline_import* imported = nullptr;
  char how[64] = "";
  uint64_t cookies = 100;
  uint32_t fences = 0;
  int kept = 0;  // of what the engine may keep

 private:
  void* library_ = nullptr;
  int alive_before_ = 0;
  int misused_before_ = 0;
};

TEST_F(NixlNetTest, PluginsThatCanNotBeUsedSayWhy) {
  const std::pair<const char*, const char*> kSteps[] = {{"init", "nixl_plugin_init returned nothing"},
                                                        {"init_throws", "this plugin never starts"},
                                                        {"version", "it is of plugin version 0"},
                                                        {"create", "it made no engine"},
                                                        {"create_throws", "this engine never starts"},
                                                        {"start", "it failed to start"},
                                                        {"no_remote", "does not move host memory"},
                                                        {"no_memory", "does not move host memory"},
                                                        {"info", "getConnInfo returned"},
                                                        {"long_info", "to say where it is"},
                                                        {"connect", "connect returned"}};
  for (const auto& [step, text] : kSteps) {
    fail(step, 1'000);
    const FakeAgent agent(towline_plugin_v1(0), "refused", settings());
    EXPECT_NE(agent.status, Status::kOk) << step;
    EXPECT_NE(agent.failure.find(text), std::string::npos) << step << ": " << agent.failure;
    EXPECT_NE(agent.failure.find(TOWLINE_FAKE_NIXL_NET), std::string::npos) << step << ": " << agent.failure;
    fail(step, 0);
  }
  EXPECT_NE(refusal(Status::kInvalidArgument, {}).find("nixl_net.library"), std::string::npos);
  EXPECT_NE(refusal(Status::kInvalidArgument, settings({{"tuning.nixl_net.blocks", "0"}}))
                .find("tuning.nixl_net.blocks"),
            std::string::npos);
  EXPECT_NE(refusal(Status::kInvalidArgument, settings({{"nixl_net.parameters", "wrong"}})).find("key=value"),
            std::string::npos);
  EXPECT_NE(refusal(Status::kUnsupported, {{"nixl_net.library", "/nowhere/libplugin_X.so"}}).find("nowhere"),
            std::string::npos);
  const std::string nowhere = refusal(Status::kInvalidArgument, {{"nixl_net.library", "UCCL"}});
  EXPECT_NE(nowhere.find("libplugin_UCCL.so"), std::string::npos) << nowhere;
  const std::string absent =
      refusal(Status::kUnsupported, {{"nixl_net.library", "UCCL"}, {"nixl.plugin_dir", "/folder"}});
  EXPECT_NE(absent.find("no libplugin_UCCL.so in /folder"), std::string::npos) << absent;
}

TEST_F(NixlNetTest, BytesGoBothWaysAndAMessageFollows) {
  open();
  connect();
  EXPECT_EQ(std::string(how), "FAKE");
  bool right = false;
  b->accepted_link()->on_message = [&](std::string_view text) {
    right = text == "after" && std::equal(from.begin(), from.begin() + kBytes / 2, to.begin());
  };
  EXPECT_EQ(move(TOWLINE_WRITE, "after"), Status::kOk);
  EXPECT_EQ(fences, TOWLINE_PART_FENCED_LOCAL | TOWLINE_PART_FENCED_REMOTE);
  EXPECT_TRUE(turn([&] { return right; }));
  std::fill(to.begin(), to.end(), uint8_t{9});
  EXPECT_EQ(move(TOWLINE_READ), Status::kOk);
  EXPECT_EQ(std::count(from.begin(), from.begin() + kBytes / 2, uint8_t{9}), std::ptrdiff_t{kBytes / 2});
  fail("at_once");
  EXPECT_EQ(move(TOWLINE_WRITE), Status::kOk);
  close();
}

TEST_F(NixlNetTest, AWholePlanStaysPreparedAndManyBlocksTakeSeveralRequests) {
  open({{"tuning.nixl_net.blocks", "2"}});
  connect();
  FakePlan one(there.region.key);
  one.add(from.data(), to.data(), kBytes);
  towline_prepared* const prepared = prepare(one, TOWLINE_WRITE);
  const int before = counted("prepared");
  for (int run = 0; run < 3; ++run) EXPECT_EQ(finish(prepared), Status::kOk);
  EXPECT_EQ(counted("prepared"), before + 1);
  EXPECT_EQ(to, from);
  std::fill(to.begin(), to.end(), uint8_t{0});
  EXPECT_EQ(move(TOWLINE_WRITE, {}, 5), Status::kOk);
  EXPECT_EQ(counted("prepared"), before + 1 + 3);
  for (std::size_t i = 0; i < 5; ++i)
    EXPECT_TRUE(std::equal(from.begin() + i * (kBytes / 5), from.begin() + i * (kBytes / 5) + kBytes / 10,
                           to.begin() + i * (kBytes / 5)))
        << i;
  a->data->unprepare(prepared);
  close();
}

TEST_F(NixlNetTest, WhatTheEngineReportsIsThePartsEnd) {
  open();
  connect();
  for (const char* step : {"prepare", "post", "check", "throw"}) {
    fail(step);
    const Status status = move(TOWLINE_WRITE);
    EXPECT_EQ(status, std::string(step) == "prepare" ? Status::kInvalidArgument : Status::kIo) << step;
    EXPECT_EQ(fences != 0, std::string(step) == "prepare")
        << step << ": only the plugin knows what still lands";
    EXPECT_EQ(move(TOWLINE_WRITE), Status::kOk) << "after " << step;
  }
  fail("late");
  EXPECT_EQ(move(TOWLINE_WRITE), Status::kOk);
  EXPECT_EQ(a->completed_twice, 0u);
  close();
}

// It ends with success, in the post or when asked, and then once more with an error: whoever asks again, or releases it,
// gets that one. The fixture sees that nobody asked, and that nothing is kept.
TEST_F(NixlNetTest, AnEngineThatCompletesARequestTwiceIsHeardOnce) {
  open();
  connect();
  FakePlan plan(there.region.key);
  plan.add(from.data(), to.data(), kBytes);
  towline_prepared* const prepared = prepare(plan, TOWLINE_WRITE);
  for (const bool at_once : {false, true}) {
    SCOPED_TRACE(at_once);
    std::fill(to.begin(), to.end(), uint8_t{0});
    fail("twice");
    fail("at_once", at_once ? 1 : 0);
    EXPECT_EQ(finish(prepared), Status::kOk);
    EXPECT_EQ(to, from);
    for (int i = 0; i < 100; ++i) a->turn();
    EXPECT_EQ(finish(prepared), Status::kOk) << "and the next run of the same request is one of its own";
    fail("twice");
    EXPECT_EQ(move(TOWLINE_READ, "after"), Status::kOk);
  }
  EXPECT_EQ(a->completed_twice, 0u);
  a->data->unprepare(prepared);
  close();
}

TEST_F(NixlNetTest, AConnectionThatEndsWithARequestOpenReleasesIt) {
  open();
  connect();
  FakePlan plan(there.region.key);
  plan.add(from.data(), to.data(), kBytes);
  towline_prepared* const prepared = prepare(plan, TOWLINE_WRITE);
  fail("never");
  EXPECT_EQ(a->submit(prepared, 1, kBytes), Status::kInProgress);
  a->memory->unimport(link->connection, imported);
  imported = nullptr;
  a->disconnect(*link);
  ASSERT_TRUE(a->ended(1));
  EXPECT_EQ(a->outcome(1), Status::kClosed);
  EXPECT_EQ(a->results.at(1).fences, 0u) << "only the plugin knows";
  EXPECT_EQ(a->completed_twice, 0u);
  a->data->unprepare(prepared);
  close();
}

TEST_F(NixlNetTest, ACancelledPartGetsAMomentAndIsThenGivenUp) {
  open();
  connect();
  FakePlan plan(there.region.key);
  plan.add(from.data(), to.data(), kBytes);
  towline_prepared* const prepared = prepare(plan, TOWLINE_WRITE);
  fail("never");
  EXPECT_EQ(a->submit(prepared, 1, kBytes), Status::kInProgress);
  a->data->cancel(link->connection, 1);
  for (int i = 0; i < 100; ++i) a->turn();
  EXPECT_FALSE(a->ended(1));
  a->skipped_ns += 2 * kSecondNs;
  EXPECT_TRUE(turn([&] { return a->ended(1); }));
  EXPECT_EQ(a->outcome(1), Status::kCancelled);
  EXPECT_EQ(a->results.at(1).fences, 0u) << "only the plugin knows";
  // One that ends within its moment is as good as any.
  EXPECT_EQ(a->submit(prepared, 2, kBytes), Status::kInProgress);
  a->data->cancel(link->connection, 2);
  EXPECT_TRUE(turn([&] { return a->ended(2); }));
  EXPECT_EQ(a->outcome(2), Status::kOk);
  a->data->unprepare(prepared);
  close();
}

TEST_F(NixlNetTest, UrgentPartsGoToTheEngineAtOnceAndOthersGiveWayForASecond) {
  open();
  connect();
  FakePlan large(there.region.key);
  large.add(from.data(), to.data(), kBytes);
  FakePlan page(there.region.key);
  page.add(from.data(), to.data(), 4096);
  towline_prepared* const bulk = prepare(large, TOWLINE_WRITE);
  towline_prepared* const urgent = prepare(page, TOWLINE_WRITE);
  const auto post_urgent = [&](uint64_t cookie) {
    ASSERT_EQ(a->submit(urgent, cookie, 4096, {}, TOWLINE_SUBMIT_URGENT), Status::kInProgress);
    ASSERT_TRUE(turn([&] { return a->ended(cookie); }));
    EXPECT_EQ(a->outcome(cookie), Status::kOk);
  };
  // Without urgent parts each goes as one request, at once.
  int before = counted("prepared");
  EXPECT_EQ(a->submit(bulk, 1, kBytes), Status::kInProgress);
  EXPECT_EQ(a->submit(bulk, 2, kBytes), Status::kInProgress);
  EXPECT_EQ(counted("prepared"), before + 2);
  ASSERT_TRUE(turn([&] { return a->ended(1) && a->ended(2); }));

  post_urgent(3);
  before = counted("prepared");
  fail("never");  // the first request of the next
  EXPECT_EQ(a->submit(bulk, 4, kBytes), Status::kInProgress);
  EXPECT_EQ(a->submit(bulk, 5, kBytes), Status::kInProgress);
  for (int i = 0; i < 100; ++i) a->turn();
  EXPECT_EQ(counted("prepared"), before + 1) << "one request at a time";
  post_urgent(6);
  EXPECT_FALSE(a->ended(5)) << "it has not begun";
  a->data->cancel(link->connection, 5);  // ends at once, since the engine has nothing of it
  ASSERT_TRUE(turn([&] { return a->ended(5); }));
  EXPECT_EQ(a->outcome(5), Status::kCancelled);
  EXPECT_EQ(a->results.at(5).fences, TOWLINE_PART_FENCED_LOCAL | TOWLINE_PART_FENCED_REMOTE);
  a->data->cancel(link->connection, 4);
  a->skipped_ns += 2 * kSecondNs;
  ASSERT_TRUE(turn([&] { return a->ended(4); }));

  post_urgent(7);
  before = counted("prepared");
  std::fill(to.begin(), to.end(), uint8_t{0});
  EXPECT_EQ(a->submit(bulk, 8, kBytes, "after"), Status::kInProgress);
  ASSERT_TRUE(turn([&] { return a->ended(8); }));
  EXPECT_EQ(a->outcome(8), Status::kOk);
  EXPECT_EQ(counted("prepared"), before + 2) << "in pieces";
  EXPECT_EQ(to, from);
  a->skipped_ns += 2 * kSecondNs;
  EXPECT_EQ(a->submit(bulk, 9, kBytes), Status::kInProgress);
  EXPECT_EQ(a->submit(bulk, 10, kBytes), Status::kInProgress);
  ASSERT_TRUE(turn([&] { return a->ended(9) && a->ended(10); }));
  EXPECT_LE(counted("prepared"), before + 2 + 2) << "whole again";
  a->data->unprepare(bulk);
  a->data->unprepare(urgent);
  close();
}

// The engine, its memory and the request stay.
TEST_F(NixlNetTest, AnEngineThatKeepsARequestStays) {
  open();
  connect();
  FakePlan plan(there.region.key);
  plan.add(from.data(), to.data(), kBytes);
  towline_prepared* const prepared = prepare(plan, TOWLINE_WRITE);
  fail("held");
  EXPECT_EQ(a->submit(prepared, 1, kBytes), Status::kInProgress);
  a->data->cancel(link->connection, 1);
  a->skipped_ns += 2 * kSecondNs;
  EXPECT_TRUE(turn([&] { return a->ended(1); }));
  EXPECT_EQ(a->outcome(1), Status::kCancelled);
  a->data->unprepare(prepared);
  EXPECT_EQ(move(TOWLINE_WRITE), Status::kOk);
  close();
  kept = 4;  // the engine, its memory, the peer's, the request
}

TEST_F(NixlNetTest, ALostPeerEndsThePartsAndTheConnection) {
  open();
  connect();
  FakePlan plan(there.region.key);
  plan.add(from.data(), to.data(), kBytes);
  towline_prepared* const prepared = prepare(plan, TOWLINE_WRITE);
  fail("never");
  EXPECT_EQ(a->submit(prepared, 1, kBytes), Status::kInProgress);
  fail("never", 0);
  fail("lost");
  EXPECT_EQ(finish(prepared), Status::kPeerLost);
  EXPECT_TRUE(turn([&] { return a->ended(1); }));
  EXPECT_EQ(a->outcome(1), Status::kPeerLost);
  EXPECT_EQ(link->downs, 1u);
  EXPECT_NE(link->text.find("lost the peer"), std::string::npos) << link->text;
  EXPECT_EQ(finish(prepared), Status::kPeerLost);
  a->data->unprepare(prepared);
  a->memory->unimport(link->connection, imported);
  imported = nullptr;
  a->disconnect(*link);
  connect();  // again, by the same engines
  EXPECT_EQ(move(TOWLINE_WRITE), Status::kOk);
  close();
}

TEST_F(NixlNetTest, MemoryAndPeersThatTheEngineRefusesAreRefusedWithTheReason) {
  open();
  towline_registration* registration = nullptr;
  std::size_t bytes = 0;
  for (const char* step : {"register", "public"}) {
    fail(step);
    EXPECT_LT(a->memory->add(a->backend, &here, &registration, nullptr, &bytes), 0) << step;
    EXPECT_NE(a->failure.find("the plugin's engine refuses memory"), std::string::npos) << a->failure;
  }
  fail("load_peer");
  link = &a->connect(*b);
  ASSERT_TRUE(turn([&] { return link->ups != 0 && b->accepted_link() != nullptr; }));
  EXPECT_EQ(import(), Status::kUnreachable);
  EXPECT_NE(a->failure.find("loadRemoteConnInfo"), std::string::npos) << a->failure;
  fail("load_peer", 0);
  imported = nullptr;
  a->disconnect(*link);
  link = &a->connect(*b);
  ASSERT_TRUE(turn([&] { return link->ups != 0 && b->accepted_link() != nullptr; }));
  fail("load_memory");
  EXPECT_EQ(import(), Status::kIo);
  EXPECT_NE(a->failure.find("loadRemoteMD"), std::string::npos) << a->failure;
  EXPECT_EQ(import(), Status::kOk);
  EXPECT_EQ(move(TOWLINE_WRITE), Status::kOk);
  close();
}

TEST_F(NixlNetTest, GuardedAndRemovedMemoryIsRefusedByItsOwner) {
  open();
  link = &a->connect(*b);
  ASSERT_TRUE(turn([&] { return link->ups != 0; }));
  b->memory->remove(b->backend, theirs);
  EXPECT_EQ(import(), Status::kStale);
  towline_region_args guarded = region(*b, to, TOWLINE_REGION_GUARDED);
  theirs = add(*b, guarded);
  there = guarded;
  EXPECT_EQ(import(), Status::kPermissionDenied);
  there.region.flags = 0;  // the peer claims that it is not; the owner knows better
  EXPECT_EQ(import(), Status::kPermissionDenied);
  EXPECT_EQ(imported, nullptr);
  close();
}

TEST_F(NixlNetTest, PeersOfAnotherPluginAreNotReached) {
  get<void(const char*)>("type")("OTHER");
  const FakeAgent other(towline_plugin_v1(0), "other", settings());
  get<void(const char*)>("type")("FAKE");
  open();
  const std::vector<uint8_t> address = const_cast<FakeAgent&>(other).address();
  EXPECT_EQ(a->connections->probe(a->backend, &other.identity, address.data(), address.size()),
            TOWLINE_UNREACHABLE);
  EXPECT_NE(a->failure.find("another plugin than FAKE"), std::string::npos) << a->failure;
  EXPECT_EQ(a->connections->probe(a->backend, &other.identity, address.data(), 2), TOWLINE_PROTOCOL);
  close();
}

}  // namespace
}  // namespace towline::nixl_net
