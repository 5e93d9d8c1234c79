#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "towline/plugin/backend.hpp"
#include "transports/faulty/plugin.h"
#include "transports/tcp/test_support.h"

namespace towline {
namespace {

using testing::FakeAgent;
using testing::FakeLink;

// A transport that keeps its promises: parts end in order at the next progress(), or at once; messages come
// back to the sender.
class LoopConnection;

class LoopBackend : public plugin::BackendBase {
 public:
  using Connection = LoopConnection;
  explicit LoopBackend(const plugin::Host& host) : BackendBase(host) { last = this; }
  ~LoopBackend() { last = nullptr; }
  int32_t add(const towline_region_args&, towline_registration**, void*, size_t*) { return 0; }
  void remove(towline_registration*) noexcept {}
  int32_t address(void*, size_t* bytes) { return *bytes = 0, 0; }
  int32_t probe(const towline_identity&, const void*, size_t) { return 0; }
  int32_t connect(uint32_t worker, const towline_identity&, const void*, size_t, uint64_t, void* peer,
                  Connection** out);
  uint32_t progress(uint32_t, uint64_t) noexcept;
  bool arm(uint32_t) noexcept { return false; }
  void disarm(uint32_t) noexcept {}

  std::vector<LoopConnection*> connections;
  bool immediate = false;
  static LoopBackend* last;
};
LoopBackend* LoopBackend::last = nullptr;

class LoopConnection {
 public:
  LoopConnection(LoopBackend& backend, void* peer) : backend_(backend), peer_(peer) {}
  const plugin::Host& host() const { return backend_.host(); }
  int32_t import(const towline_region_args&, const void*, size_t, towline_import** import, char how[64]) {
    ++imports;
    how[0] = 0;
    *import = reinterpret_cast<towline_import*>(this);
    return 0;
  }
  void unimport(towline_import*) noexcept { --imports; }
  void disconnect() noexcept {
    EXPECT_EQ(imports, 0);
    std::vector<uint64_t> ending;
    ending.swap(flying);
    for (const uint64_t cookie : ending) end(cookie, Status::kClosed);
    std::erase(backend_.connections, this);
    delete this;
  }
  std::string describe() const { return "{\"loop\": true}"; }
  int32_t prepare(const towline_prepare_args& args, towline_prepared** prepared) {
    for (uint64_t i = 0; args.remote != nullptr && i < args.plan->remote->region_count; ++i) {
      EXPECT_EQ(args.remote[i], reinterpret_cast<towline_import*>(this));
    }
    *prepared = new towline_prepared{sizeof(towline_prepared), TOWLINE_PREPARED_CONCURRENT, 0,
                                     reinterpret_cast<towline_connection*>(this), args.plan};
    return 0;
  }
  static void unprepare(towline_prepared* prepared) noexcept { delete prepared; }
  static int32_t submit(towline_prepared* prepared, const towline_submit_args& args) noexcept {
    auto* connection = reinterpret_cast<LoopConnection*>(prepared->connection);
    if (connection->backend_.immediate) return TOWLINE_OK;
    connection->flying.push_back(args.cookie);
    return TOWLINE_IN_PROGRESS;
  }
  int32_t send(const void* message, size_t bytes) noexcept {
    const auto* begin = static_cast<const char*>(message);
    messages.emplace_back(begin, begin + bytes);
    return 0;
  }
  void cancel(uint64_t cookie) noexcept {
    if (std::erase(flying, cookie) != 0) end(cookie, Status::kCancelled);
  }
  void end(uint64_t cookie, Status status) {
    auto result = plugin::sized<towline_part_result>();
    result.status = static_cast<int32_t>(status);
    result.fences = TOWLINE_PART_FENCED_LOCAL;
    host().complete(cookie, result);
  }
  void progress() {
    if (!up) host().connection_event(peer_, TOWLINE_CONNECTION_UP, Status::kOk, "");
    up = true;
    std::vector<uint64_t> ending;
    ending.swap(flying);
    for (const uint64_t cookie : ending) end(cookie, Status::kOk);
    std::vector<std::string> arriving;
    arriving.swap(messages);
    for (const std::string& message : arriving) host().message(peer_, message.data(), message.size());
  }

  bool up = false;
  int imports = 0;
  std::vector<uint64_t> flying;
  std::vector<std::string> messages;

 private:
  LoopBackend& backend_;
  void* peer_;
};

int32_t LoopBackend::connect(uint32_t, const towline_identity&, const void*, size_t, uint64_t, void* peer,
                             Connection** out) {
  *out = connections.emplace_back(new LoopConnection(*this, peer));
  return 0;
}

uint32_t LoopBackend::progress(uint32_t, uint64_t) noexcept {
  for (std::size_t i = 0; i < connections.size(); ++i) connections[i]->progress();
  return 0;
}

const towline_plugin_v1_t* loop_plugin() {
  static constexpr towline_move_v1 kMoves[] = {
      plugin::move(plugin::kReadAndWrite, plugin::kinds(TOWLINE_MEMORY_DRAM),
                   plugin::kinds(TOWLINE_MEMORY_DRAM), TOWLINE_WHERE_ANY_HOST)};
  static const towline_plugin_v1_t plugin =
      plugin::describe<LoopBackend>({"loop", "1", "loops", TOWLINE_TRAIT_ONE_SIDED, kMoves, 10, 0, "nothing"},
                                    [](char*, size_t) { return 0; });
  return &plugin;
}

class FaultyTest : public ::testing::Test {
 protected:
  void open(const std::string& faults, FakeAgent::Settings settings = {}) {
    plugin = make_faulty(loop_plugin(), framing::parse_fault_options(faults));
    agent.reset();
    agent = std::make_unique<FakeAgent>(plugin, "a", std::move(settings));
    agent->clock = &clock;
    ASSERT_EQ(agent->status, Status::kOk) << agent->failure;
    link = &agent->connect(agent->identity, {});
    agent->turn();
    ASSERT_EQ(link->ups, 1u);
    plan = std::make_unique<testing::FakePlan>(1);
    plan->add(&byte, &byte, 1);
    prepared = agent->prepare(*link, plan->plan(), TOWLINE_WRITE);
  }
  // Submits cookies 1 to `count`, leaving out those refused; returns how many were taken.
  uint64_t submit(uint64_t count) {
    uint64_t taken = 0;
    for (uint64_t cookie = 1; cookie <= count; ++cookie) {
      const Status status = agent->submit(prepared, cookie, 1);
      if (status == Status::kInProgress) ++taken;
      if (status != Status::kInProgress) last_refusal = status;
    }
    return taken;
  }
  void pass_time(uint64_t ns) {
    clock.advance(ns);
    agent->turn();
  }

  VirtualClock clock{1};
  const towline_plugin_v1_t* plugin = nullptr;
  std::unique_ptr<testing::FakePlan> plan;
  std::unique_ptr<FakeAgent> agent;
  FakeLink* link = nullptr;
  uint8_t byte = 0;
  towline_prepared* prepared = nullptr;
  Status last_refusal = Status::kOk;
};

TEST_F(FaultyTest, WithoutFaultsChangesNothing) {
  open("");
  EXPECT_EQ(submit(100), 100u);
  agent->turn();
  EXPECT_EQ(agent->completions, 100u);
  agent->send(*link, "hello");
  agent->turn();
  EXPECT_EQ(link->messages, std::vector<std::string>{"hello"});
  char json[200];
  agent->connections->describe(link->connection, json, sizeof json);
  EXPECT_NE(std::string(json).find("{\"loop\": true}"), std::string::npos);
}

TEST_F(FaultyTest, KeepsTheInnerPluginsNameAndTraits) {
  open("");
  EXPECT_STREQ(plugin->name, "loop");
  EXPECT_EQ(plugin->traits, unsigned{TOWLINE_TRAIT_ONE_SIDED});
  EXPECT_EQ(make_faulty(loop_plugin(), {}), plugin);
}

TEST_F(FaultyTest, DelaysOutcomesAndTellsEachOnce) {
  open("seed=5,delay=0.5:10ms");
  EXPECT_EQ(submit(1000), 1000u);
  agent->turn();
  EXPECT_GT(agent->completions, 300u);
  EXPECT_LT(agent->completions, 700u);
  EXPECT_EQ(agent->data->arm(agent->backend, 0), 1u);
  pass_time(5 * kMillisecondNs);
  EXPECT_GT(agent->completions, 600u);
  EXPECT_LT(agent->completions, 900u);
  pass_time(5 * kMillisecondNs);
  EXPECT_EQ(agent->completions, 1000u);
  EXPECT_EQ(agent->completed_twice, 0u);
  EXPECT_EQ(agent->data->arm(agent->backend, 0), 0u);
}

TEST_F(FaultyTest, DelaysWhatTheInnerTransportFinishesAtOnce) {
  open("delay=1:10ms");
  LoopBackend::last->immediate = true;
  EXPECT_EQ(submit(10), 10u);
  EXPECT_LT(agent->completions, 10u);
  pass_time(10 * kMillisecondNs);
  EXPECT_EQ(agent->completions, 10u);
  EXPECT_EQ(agent->outcome(3), Status::kOk);
  EXPECT_EQ(agent->results.at(3).bytes, 1u);
}

TEST_F(FaultyTest, ReordersOutcomesAcrossParts) {
  open("reorder=0.3");
  EXPECT_EQ(submit(200), 200u);
  agent->turn();
  pass_time(2 * kMillisecondNs);
  EXPECT_EQ(agent->completions, 200u);
  EXPECT_EQ(agent->completed_twice, 0u);
  EXPECT_FALSE(std::is_sorted(agent->order.begin(), agent->order.end()));
}

TEST_F(FaultyTest, KeepsMessagesInOrderWhileItDelaysThem) {
  open("delay=0.3:10ms");
  std::vector<std::string> sent;
  for (int i = 0; i < 200; ++i) sent.push_back(std::to_string(i));
  for (const std::string& message : sent) ASSERT_EQ(agent->send(*link, message), Status::kOk);
  agent->turn();
  EXPECT_LT(link->messages.size(), sent.size());
  for (int i = 0; i < 10; ++i) pass_time(10 * kMillisecondNs);
  EXPECT_EQ(link->messages, sent);
}

TEST_F(FaultyTest, RefusesSomeCallsForTheMoment) {
  open("short=0.3");
  const uint64_t taken = submit(1000);
  EXPECT_GT(taken, 500u);
  EXPECT_LT(taken, 900u);
  EXPECT_EQ(last_refusal, Status::kAgain);
  agent->turn();
  EXPECT_EQ(agent->completions, taken);
}

TEST_F(FaultyTest, CutsConnectionsAndEndsWhatIsInFlight) {
  open("cut=0.05");
  const uint64_t taken = submit(1000);
  EXPECT_LT(taken, 1000u);
  EXPECT_EQ(last_refusal, Status::kPeerLost);
  agent->turn();
  EXPECT_EQ(link->downs, 1u);
  EXPECT_EQ(link->status, Status::kPeerLost);
  EXPECT_EQ(agent->completions, taken);
  EXPECT_TRUE(LoopBackend::last->connections.empty());
  EXPECT_EQ(agent->send(*link, "x"), Status::kPeerLost);
  agent->disconnect(*link);
}

TEST_F(FaultyTest, CutsOnceAfterSoManyBytes) {
  open("cut_after=5");
  EXPECT_EQ(submit(10), 5u);
  agent->turn();
  EXPECT_EQ(link->downs, 1u);
}

TEST_F(FaultyTest, ReleasesImportsBeforeItCuts) {
  open("cut_after=1");
  const towline_region_args args = {sizeof args, {}, -1, 0, nullptr};
  towline_import* import = nullptr;
  char how[64];
  ASSERT_EQ(agent->memory->import(link->connection, &args, nullptr, 0, &import, how), TOWLINE_OK);
  EXPECT_EQ(LoopBackend::last->connections[0]->imports, 1);
  submit(1);
  agent->turn();  // the inner transport checks that no import is left
  EXPECT_EQ(link->downs, 1u);
  agent->memory->unimport(link->connection, import);
}

TEST_F(FaultyTest, HandsImportsThrough) {
  open("short=0.5");
  const towline_region_args args = {sizeof args, {}, -1, 0, nullptr};
  towline_import* import = nullptr;
  char how[64];
  int32_t status = TOWLINE_AGAIN;
  for (int i = 0; i < 100 && status == TOWLINE_AGAIN; ++i) {
    status = agent->memory->import(link->connection, &args, nullptr, 0, &import, how);
  }
  ASSERT_EQ(status, TOWLINE_OK);
  const towline_prepare_args prepare = {sizeof prepare, plan->plan(), nullptr, &import, TOWLINE_READ, 0};
  towline_prepared* other = nullptr;
  ASSERT_EQ(agent->data->prepare(link->connection, &prepare, &other), TOWLINE_OK);
  agent->data->unprepare(other);
  agent->memory->unimport(link->connection, import);
}

TEST_F(FaultyTest, TellsHeldOutcomesWhenDisconnected) {
  open("delay=1:10ms");
  EXPECT_EQ(submit(10), 10u);
  agent->turn();
  agent->disconnect(*link);
  EXPECT_EQ(agent->completions, 10u);
}

TEST_F(FaultyTest, CancelsHeldAndFlyingParts) {
  open("delay=1:1s");
  EXPECT_EQ(submit(2), 2u);
  agent->data->cancel(link->connection, 1);
  agent->turn();
  pass_time(kSecondNs);
  EXPECT_EQ(agent->outcome(1), Status::kCancelled);
  EXPECT_EQ(agent->outcome(2), Status::kOk);
}

TEST_F(FaultyTest, TakesTheOptionsOfTheAgentsConfiguration) {
  open("", {{"faults", "cut_after=1"}});
  submit(1);
  agent->turn();
  EXPECT_EQ(link->downs, 1u);
  FakeAgent refused(plugin, "x", {{"faults", "nonsense"}});
  EXPECT_EQ(refused.status, Status::kInvalidArgument);
  EXPECT_NE(refused.failure.find("nonsense"), std::string::npos);
}

TEST_F(FaultyTest, GivesTheSameFaultsForTheSameSeed) {
  std::vector<std::vector<uint64_t>> runs;
  for (const char* faults : {"seed=7,delay=0.5:10ms,short=0.1", "seed=7,delay=0.5:10ms,short=0.1",
                             "seed=8,delay=0.5:10ms,short=0.1"}) {
    open(faults);
    std::vector<uint64_t>& run = runs.emplace_back();
    run.push_back(submit(300));
    for (int i = 0; i < 10; ++i) {
      pass_time(kMillisecondNs);
      run.push_back(agent->completions);
    }
    agent.reset();
  }
  EXPECT_EQ(runs[0], runs[1]);
  EXPECT_NE(runs[0], runs[2]);
}

}  // namespace
}  // namespace towline
