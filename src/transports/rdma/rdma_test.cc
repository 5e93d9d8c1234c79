// The backend as the core sees it, over the loopback rails of this process.
#include <gtest/gtest.h>

#include <numeric>

#include "fabric/topology.h"
#include "transports/rdma/plugin.h"
#include "transports/rdma/wire.h"
#include "transports/tcp/plugin.h"
#include "transports/tcp/test_support.h"

namespace towline::rdma {
namespace {

using towline::testing::FakeAgent;
using towline::testing::FakeLink;
using towline::testing::FakePlan;
using towline::testing::turn_until;

constexpr std::size_t kBytes = 1 << 20;
constexpr uint64_t kCarrierMark = 0x72646d61;

FakeAgent::Settings rails(const std::string& names) {
  return {{"tuning.rdma.rails", names}, {"tuning.rdma.listen", "127.0.0.1:0"}};
}

std::string refusal_of(const FakeAgent::Settings& settings, Status status,
                       const towline_plugin_v1_t* plugin = towline_rdma_plugin()) {
  const FakeAgent agent(plugin, "refused", settings);
  EXPECT_EQ(agent.status, status) << agent.failure;
  return agent.failure;
}

class RdmaTest : public ::testing::Test {
 protected:
  void open(const std::string& of_a = "loopback:unit", const std::string& of_b = "loopback:unit") {
    open(towline_rdma_plugin(), rails(of_a), rails(of_b));
  }
  void open(const towline_plugin_v1_t* plugin, const FakeAgent::Settings& of_a,
            const FakeAgent::Settings& of_b) {
    FakeAgent::builtin = towline_tcp_plugin();
    a = std::make_unique<FakeAgent>(plugin, "a", of_a);
    b = std::make_unique<FakeAgent>(plugin, "b", of_b);
    ASSERT_EQ(a->status, Status::kOk) << a->failure;
    ASSERT_EQ(b->status, Status::kOk) << b->failure;
    link = &a->connect(*b);
    ASSERT_TRUE(turn([&] { return link->ups + link->downs != 0 && b->accepted_link() != nullptr; }));
    ASSERT_EQ(link->ups, 1u) << link->text;
    from.resize(kBytes);
    std::iota(from.begin(), from.end(), uint8_t{3});
    to.assign(kBytes, 0);
  }
  void TearDown() override {
    for (FakeAgent* agent : {a.get(), b.get()})
      if (agent != nullptr) agent->close();
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
  // The status that it comes to.
  Status import(const towline_region_args& args, towline_import** import) {
    int32_t status = TOWLINE_AGAIN;
    (void)turn([&] {
      status = a->memory->import(link->connection, &args, nullptr, 0, import, how);
      return status != TOWLINE_AGAIN;
    });
    return static_cast<Status>(status);
  }
  Status move(const FakePlan&, const towline_plan* plan, towline_registration* local, towline_import* remote,
              uint32_t op, std::string_view message = {}) {
    const towline_prepare_args args = {sizeof args, plan, &local, &remote, op, 0};
    towline_prepared* prepared = nullptr;
    EXPECT_EQ(a->data->prepare(link->connection, &args, &prepared), TOWLINE_OK) << a->failure;
    const uint64_t cookie = ++cookies;
    EXPECT_EQ(a->submit(prepared, cookie, plan->bytes, message), Status::kInProgress);
    EXPECT_TRUE(turn([&] { return a->ended(cookie); }));
    a->data->unprepare(prepared);
    return a->outcome(cookie);
  }

  std::unique_ptr<FakeAgent> a;
  std::unique_ptr<FakeAgent> b;
  FakeLink* link = nullptr;
  std::vector<uint8_t> from;
  std::vector<uint8_t> to;
  char how[64] = "";
  uint64_t cookies = 0;
};

TEST_F(RdmaTest, AMessageFollowsTheBytes) {
  open();
  const towline_region_args here = region(*a, from);
  const towline_region_args there = region(*b, to);
  towline_registration* mine = add(*a, here);
  towline_registration* theirs = add(*b, there);
  towline_import* imported = nullptr;
  ASSERT_EQ(import(there, &imported), Status::kOk) << a->failure;
  EXPECT_EQ(std::string(how), "1 rail: loopback unit");
  FakePlan plan(there.region.key);
  plan.add(from.data(), to.data(), kBytes);
  bool right = false;
  b->accepted_link()->on_message = [&](std::string_view text) { right = text == "after" && to == from; };
  EXPECT_EQ(move(plan, plan.plan(), mine, imported, TOWLINE_WRITE, "after"), Status::kOk);
  EXPECT_TRUE(turn([&] { return right; }));
  a->memory->unimport(link->connection, imported);
  a->memory->remove(a->backend, mine);
  b->memory->remove(b->backend, theirs);
}

// Registration takes seconds for huge memory: the peer's question is answered when it is done, and others go on.
TEST_F(RdmaTest, WhatIsRegisteredInTheBackgroundIsWaitedForAndOthersGoOn) {
  FakeAgent::Settings settings = rails("loopback:unit");
  settings["tuning.rdma.background_bytes"] = std::to_string(kBytes);
  open(towline_rdma_plugin(), settings, settings);
  std::vector<uint8_t> small_from(4096, uint8_t{7});
  std::vector<uint8_t> small_to(4096);
  a->takes_work = b->takes_work = true;
  const towline_region_args here = region(*a, from);
  const towline_region_args there = region(*b, to);
  const towline_region_args small_here = region(*a, small_from);
  const towline_region_args small_there = region(*b, small_to);
  towline_registration* mine = add(*a, here);
  towline_registration* theirs = add(*b, there);
  towline_registration* small_mine = add(*a, small_here);
  (void)add(*b, small_there);
  ASSERT_EQ(a->work.size(), 1u);
  ASSERT_EQ(b->work.size(), 1u);
  const auto ask = [&](towline_import** imported) {
    return a->memory->import(link->connection, &there, nullptr, 0, imported, how);
  };
  towline_import* huge = nullptr;
  EXPECT_EQ(ask(&huge), TOWLINE_AGAIN);
  towline_import* small = nullptr;
  ASSERT_EQ(import(small_there, &small), Status::kOk) << a->failure;  // asked for later, answered at once
  FakePlan few(small_there.region.key);
  few.add(small_from.data(), small_to.data(), small_from.size());
  EXPECT_EQ(move(few, few.plan(), small_mine, small, TOWLINE_WRITE), Status::kOk);
  EXPECT_EQ(small_to, small_from);
  EXPECT_EQ(ask(&huge), TOWLINE_AGAIN);
  const uint32_t wakes = b->wakes;
  b->work[0]();
  EXPECT_GT(b->wakes, wakes);
  ASSERT_EQ(import(there, &huge), Status::kOk) << a->failure;
  FakePlan plan(there.region.key);
  plan.add(from.data(), to.data(), kBytes);
  const towline_prepare_args args = {sizeof args, plan.plan(), &mine, &huge, TOWLINE_WRITE, 0};
  towline_prepared* prepared = nullptr;
  EXPECT_EQ(a->data->prepare(link->connection, &args, &prepared), TOWLINE_AGAIN);
  a->work[0]();
  EXPECT_EQ(move(plan, plan.plan(), mine, huge, TOWLINE_WRITE), Status::kOk);
  EXPECT_EQ(to, from);
  for (towline_import* imported : {huge, small}) a->memory->unimport(link->connection, imported);
  a->memory->remove(a->backend, mine);
  b->memory->remove(b->backend, theirs);
}

// Bytes carried by UCX and libfabric arrive, both ways.
struct Library {
  const char* name;
  const towline_plugin_v1_t* (*plugin)();
  FakeAgent::Settings settings;
  const char* rails;  // as import() tells
};
void PrintTo(const Library& library, std::ostream* out) { *out << library.name; }

class RdmaLibraryTest : public RdmaTest, public ::testing::WithParamInterface<Library> {};

TEST_P(RdmaLibraryTest, CarriesBytesBothWays) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "UCX and libfabric have threads of their own, which ThreadSanitizer can't follow";
#endif
  open(GetParam().plugin(), GetParam().settings, GetParam().settings);
  const towline_region_args here = region(*a, from);
  const towline_region_args there = region(*b, to);
  towline_registration* mine = add(*a, here);
  towline_registration* theirs = add(*b, there);
  towline_import* imported = nullptr;
  ASSERT_EQ(import(there, &imported), Status::kOk) << a->failure;
  EXPECT_NE(std::string(how).find(GetParam().rails), std::string::npos) << how;
  FakePlan plan(there.region.key);
  plan.add(from.data(), to.data(), kBytes);
  EXPECT_EQ(move(plan, plan.plan(), mine, imported, TOWLINE_WRITE), Status::kOk);
  EXPECT_EQ(to, from);
  const std::vector<uint8_t> before = from;
  std::fill(from.begin(), from.end(), uint8_t{0});
  EXPECT_EQ(move(plan, plan.plan(), mine, imported, TOWLINE_READ), Status::kOk);
  EXPECT_EQ(from, before);
  a->memory->unimport(link->connection, imported);
  a->memory->remove(a->backend, mine);
  b->memory->remove(b->backend, theirs);
}

INSTANTIATE_TEST_SUITE_P(
    Libraries, RdmaLibraryTest,
    ::testing::Values(Library{"rdma_over_ucx",
                              towline_rdma_plugin,
                              {{"tuning.rdma.rails", "ucx:tcp"}, {"tuning.rdma.listen", "127.0.0.1:0"}},
                              "ucx tcp"},
                      Library{"ucx",
                              towline_ucx_plugin,
                              {{"tuning.ucx.transports", "tcp"},
                               {"tuning.ucx.options", "ZCOPY_THRESH=8k, RNDV_THRESH=64k"},
                               {"tuning.ucx.listen", "127.0.0.1:0"}},
                              "ucx tcp"},
                      Library{"ucx_by_its_own_choice",
                              towline_ucx_plugin,
                              {{"tuning.ucx.listen", "127.0.0.1:0"}},
                              "ucx auto"},
                      Library{"libfabric",
                              towline_libfabric_plugin,
                              {{"tuning.libfabric.provider", "tcp;ofi_rxm"},
                               {"tuning.libfabric.address", "127.0.0.1"},
                               {"tuning.libfabric.listen", "127.0.0.1:0"}},
                              "ofi tcp"}),
    [](const auto& test) { return test.param.name; });

TEST_F(RdmaTest, GuardedMemoryIsRefusedWithTheReason) {
  open();
  towline_region_args there = region(*b, to, TOWLINE_REGION_GUARDED);
  towline_registration* theirs = add(*b, there);
  towline_import* imported = nullptr;
  EXPECT_EQ(import(there, &imported), Status::kPermissionDenied);
  EXPECT_NE(a->failure.find("guarded"), std::string::npos) << a->failure;
  // A peer that says that it is not: the owner knows better.
  there.region.flags = 0;
  EXPECT_EQ(import(there, &imported), Status::kPermissionDenied);
  EXPECT_EQ(imported, nullptr);
  b->memory->remove(b->backend, theirs);
}

TEST_F(RdmaTest, ARegionThatIsGoneIsStale) {
  open();
  const towline_region_args there = region(*b, to);
  b->memory->remove(b->backend, add(*b, there));
  towline_import* imported = nullptr;
  EXPECT_EQ(import(there, &imported), Status::kStale);
  // Registered here, and on its way out at the core.
  towline_registration* theirs = add(*b, there);
  b->regions.back()->stale = true;
  EXPECT_EQ(import(there, &imported), Status::kStale);
  b->memory->remove(b->backend, theirs);
}

TEST_F(RdmaTest, APeerWithOtherRailsIsNotConnectedTo) {
  a = std::make_unique<FakeAgent>(towline_rdma_plugin(), "a", rails("loopback:one"));
  b = std::make_unique<FakeAgent>(towline_rdma_plugin(), "b", rails("loopback:other"));
  EXPECT_EQ(a->connect(*b).status, Status::kUnreachable);
  EXPECT_NE(a->failure.find("loopback:other"), std::string::npos) << a->failure;
}

TEST_F(RdmaTest, AConnectionThatEndsEndsItsParts) {
  open("loopback:slow?rate=1e5", "loopback:slow");
  towline_registration* mine = add(*a, region(*a, from));
  const towline_region_args there = region(*b, to);
  towline_registration* theirs = add(*b, there);
  towline_import* imported = nullptr;
  ASSERT_EQ(import(there, &imported), Status::kOk) << a->failure;
  FakePlan plan(there.region.key);
  plan.add(from.data(), to.data(), kBytes);  // ten seconds
  const towline_prepare_args args = {sizeof args, plan.plan(), &mine, &imported, TOWLINE_WRITE, 0};
  towline_prepared* prepared = nullptr;
  ASSERT_EQ(a->data->prepare(link->connection, &args, &prepared), TOWLINE_OK);
  ASSERT_EQ(a->submit(prepared, 1, kBytes), Status::kInProgress);
  (void)turn([n = 0]() mutable { return ++n > 100; });
  b->close();
  ASSERT_TRUE(turn_until({a.get()}, [&] { return a->ended(1) && link->downs == 1; }));
  EXPECT_EQ(a->outcome(1), Status::kPeerLost);
  EXPECT_EQ(a->results.at(1).fences & TOWLINE_PART_FENCED_LOCAL, unsigned{TOWLINE_PART_FENCED_LOCAL});
  a->data->unprepare(prepared);
  a->memory->unimport(link->connection, imported);
  a->memory->remove(a->backend, mine);
  (void)theirs;  // went with its backend
}

TEST_F(RdmaTest, WhatAPeerSendsAgainstTheRulesEndsItsConnectionOnly) {
  open();
  // A stranger that speaks to the carrier.
  FakeAgent stranger(towline_tcp_plugin(), "stranger", {{"tcp.listen", "none"}});
  towline_identity carrier = b->identity;
  carrier.incarnation[0] ^= kCarrierMark;
  const auto address = decode_address(b->address());
  ASSERT_TRUE(address);
  const std::vector<std::vector<uint8_t>> bad = {
      {'T', 'M', 'A', '1', 1, 0},            // a hello without an engine
      {'T', 'M', 'A', '1', 2},               // an ask without a key
      {'T', 'M', 'A', '1', 3, 9, 9},         // half an answer
      {'T', 'M', 'A', '1', 99, 1, 2, 3, 4},  // no kind
  };
  for (const std::vector<uint8_t>& message : bad) {
    const std::size_t before = b->links.size();
    FakeLink& bad_link = stranger.connect(carrier, address->carrier);
    ASSERT_TRUE(turn_until({b.get(), &stranger}, [&] { return bad_link.ups == 1; })) << stranger.failure;
    ASSERT_EQ(stranger.send(bad_link, {reinterpret_cast<const char*>(message.data()), message.size()}),
              Status::kOk);
    ASSERT_TRUE(turn_until({b.get(), &stranger},
                           [&] { return b->links.size() > before && b->links.back()->downs == 1; }));
    EXPECT_EQ(b->links.back()->status, Status::kProtocol);
    b->disconnect(*b->links.back());
    stranger.disconnect(bad_link);
  }
  // An ask for what is not there is answered, and control messages of no engine are dropped.
  FakeLink& curious = stranger.connect(carrier, address->carrier);
  ASSERT_TRUE(turn_until({b.get(), &stranger}, [&] { return curious.ups == 1; }));
  const std::vector<uint8_t> control = encode_control(std::vector<uint8_t>{1, 2, 3});
  const std::vector<uint8_t> ask = encode(Ask{12345});
  for (const auto& message : {control, ask})
    EXPECT_EQ(stranger.send(curious, {reinterpret_cast<const char*>(message.data()), message.size()}),
              Status::kOk);
  const auto answered = [&] {
    for (const std::string& text : curious.messages) {
      const auto answer = decode_answer({reinterpret_cast<const uint8_t*>(text.data()), text.size()});
      if (answer && answer->key == 12345) return answer->status == Status::kStale;
    }
    return false;
  };
  EXPECT_TRUE(turn_until({b.get(), &stranger}, answered));
  EXPECT_EQ(link->downs, 0u);
}

TEST(RdmaSettings, WithoutADeviceTheReasonIsTold) {
  if (!fabric::choose_rails(fabric::read_rdma_ports()).rails.empty()) return;  // here it is used
  const std::string why = refusal_of({}, Status::kUnsupported);
  EXPECT_NE(why.find("this host has no"), std::string::npos) << why;
  EXPECT_NE(why.find("tuning.rdma.rails"), std::string::npos) << why;
}

TEST(RdmaSettings, WhatIsWrongIsNamed) {
  using enum Status;
  EXPECT_NE(refusal_of(rails("nonsense"), kInvalidArgument).find("\"nonsense\" names no rail"),
            std::string::npos);
  EXPECT_NE(refusal_of(rails(" , "), kInvalidArgument).find("tuning.rdma.rails"), std::string::npos);
  FakeAgent::Settings settings = rails("loopback:x");
  settings["tuning.rdma.connections"] = "many";
  EXPECT_NE(refusal_of(settings, kInvalidArgument).find("tuning.rdma.connections"), std::string::npos);
  settings = rails("loopback:x");
  settings["tuning.rdma.slice_bytes"] = "3";
  EXPECT_NE(refusal_of(settings, kInvalidArgument).find("tuning.rdma.slice_bytes"), std::string::npos);
  EXPECT_NE(refusal_of(rails("ofi:nosuch"), kUnsupported).find("the rail ofi:nosuch"), std::string::npos);
}

TEST(RdmaSettings, UcxSaysWhatItDoesNotKnow) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "UCX and libfabric have threads of their own, which ThreadSanitizer can't follow";
#endif
  using enum Status;
  const auto refusal = [](const char* key, const char* value, Status status) {
    return refusal_of({{key, value}}, status, towline_ucx_plugin());
  };
  EXPECT_NE(refusal("tuning.ucx.transports", "nosuch", kUnsupported).find("no transport nosuch"),
            std::string::npos);
  EXPECT_NE(
      refusal("tuning.ucx.options", "RNDV_THRESH=often", kInvalidArgument).find("\"RNDV_THRESH=often\""),
      std::string::npos);
  EXPECT_NE(refusal("tuning.ucx.connections", "many", kInvalidArgument).find("tuning.ucx.connections"),
            std::string::npos);
}

}  // namespace
}  // namespace towline::rdma
