// The application's view of the library: its log, hooks around operations; and options of another version.
#include "towline/observe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "towline/fabric.h"
#include "towline/telemetry.h"
#include "towline/towline.hpp"

namespace towline {
namespace {

using namespace std::chrono_literals;

struct Logged {
  std::vector<std::pair<uint32_t, std::string>> lines;
  static void take(void* context, uint32_t level, const char* message, size_t bytes) {
    EXPECT_EQ(std::strlen(message), bytes);
    static_cast<Logged*>(context)->lines.emplace_back(level, std::string(message, bytes));
  }
};

TEST(Observe, TheApplicationGetsTheMessages) {
  Logged first;
  Logged second;
  // A variable that names an unknown setting causes a warning.
  const auto warn = [](const char* variable) {
    setenv(variable, "true", 1);
    const Agent agent{"warns", {.listen = "none", .backends = "memory"}};
    unsetenv(variable);
  };
  towline_set_log_sink(&Logged::take, &first);
  warn("TOWLINE_MEMORY_FRAMEZ");
  towline_set_log_sink(&Logged::take, &second);
  warn("TOWLINE_MEMORY_RINGZ");
  towline_set_log_sink(nullptr, nullptr);
  const auto has = [](const Logged& log, const char* what) {
    return std::any_of(log.lines.begin(), log.lines.end(), [&](const auto& line) {
      return line.first == TOWLINE_LOG_WARNING && line.second.find(what) != std::string::npos;
    });
  };
  EXPECT_TRUE(has(first, "MEMORY_FRAMEZ"));
  EXPECT_TRUE(has(second, "MEMORY_RINGZ"));
  EXPECT_FALSE(has(first, "MEMORY_RINGZ"));
}

TEST(Observe, AMisspeltSettingOfTheProgramIsAnError) {
  try {
    const Agent agent{"misspelt",
                      {.listen = "none", .backends = "memory", .config = "[peer]\nlosst = \"3s\"\n"}};
    FAIL() << "it was taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Status::kInvalidArgument);
    EXPECT_NE(std::string(error.what()).find("peer.lost is the nearest"), std::string::npos) << error.what();
  }
}

TEST(Settings, SayWhatIsInForceAndFromWhere) {
  const auto read = [](const char* config) {
    return detail::read_text([&](char* json, size_t capacity, size_t* needed) {
      return towline_settings(config, json, capacity, needed);
    });
  };
  setenv("TOWLINE_PEER_LOST", "7s", 1);
  const std::string text = read("[etcd]\npassword = \"open sesame\"\n[peer]\nloss = 1\n");
  unsetenv("TOWLINE_PEER_LOST");
  const auto has = [&](const char* part) { return text.find(part) != std::string::npos; };
  EXPECT_TRUE(has(R"("value":"7s")")) << text;
  EXPECT_TRUE(has("environment TOWLINE_PEER_LOST"));
  EXPECT_TRUE(has("set by the program"));
  EXPECT_TRUE(has(R"("schema":1)"));
  EXPECT_TRUE(has("peer.loss"));
  EXPECT_FALSE(has("open sesame")) << "secrets are not told";
  EXPECT_LT(towline_settings("[", nullptr, 0, nullptr), 0);
}

TEST(Settings, SayWhichValuesAreRefusedAndWhy) {
  const auto wrong = [](const std::string& config) {
    const std::string text = detail::read_text([&](char* json, size_t capacity, size_t* needed) {
      return towline_settings(config.c_str(), json, capacity, needed);
    });
    const size_t at = text.find("\"wrong\":\"");
    return at == std::string::npos ? std::string() : text.substr(at, 120);
  };
  for (const auto& [config, said] : std::initializer_list<std::pair<const char*, const char*>>{
           {"[peer]\nlost = \"soon\"", "is not a duration with its unit"},
           {"workers = 9", "is not a whole number from 1 to 8"},
           {"[tuning.staging]\nbytes = \"much\"", "is not a size"},
           {"[tuning]\nsplit = \"of\"", "is not one of auto, on, off"},
           {"[gpu]\nunordered = \"maybe\"", "is not true or false"},
           {"[tuning.cuda]\nhost_threads = \"some\"", "is not a whole number"}})
    EXPECT_NE(wrong(config).find(said), std::string::npos) << config << ": " << wrong(config);
  // The defaults, and others that are taken.
  const std::string text = detail::read_text([](char* json, size_t capacity, size_t* needed) {
    return towline_settings(nullptr, json, capacity, needed);
  });
  EXPECT_EQ(text.find("\"wrong\""), std::string::npos);
  for (const char* config :
       {"workers = 8", "[peer]\nlost = \"infinite\"", "[tuning.cuda]\nhost_threads = \"auto\"",
        "[tuning.cuda]\nhost_threads = 16", "[cuda]\ngpu = 2", "[tuning.tcp]\nsockets = 3",
        "[tuning.object]\nchecksum = \"sha256\"", "[tuning]\nsplit = \" on \"",
        "[tuning.staging]\ndepth = 2"})
    EXPECT_EQ(wrong(config), "") << config;
}

// Every JSON object of the library says which version its shape is; docs/versions.md lists them.
TEST(Json, SaysItsSchema) {
  const std::string schema = "\"schema\":" + std::to_string(TOWLINE_JSON_SCHEMA);
  const auto says = [&](const std::string& json) {
    EXPECT_NE(json.find(schema), std::string::npos) << json;
    EXPECT_TRUE(json.starts_with('{') || json.starts_with("[{")) << json;
  };
  const Agent agent{"schema", {.listen = "none", .backends = "memory"}};
  std::vector<std::byte> bytes(8192);
  const Region memory = agent.register_memory(dram(bytes.data(), bytes.size()), {.access = Access::kAll});
  const BlockList from = agent.block_list(memory.blocks(0, 4096));
  const BlockList to = agent.block_list(memory.blocks(4096, 4096));
  says(agent.info());
  says(agent.metrics());
  says(agent.transfer(from, to).route());
  says(agent.plan(from, to).route());
  says(detail::read_text([](char* json, size_t capacity, size_t* needed) {
    return towline_host_metrics(json, capacity, needed);
  }));
  says(detail::read_text([](char* json, size_t capacity, size_t* needed) {
    return towline_fabric_topology(json, capacity, needed);
  }));
}

// Two agents of this process.
class Hooks : public ::testing::Test {
 protected:
  explicit Hooks(Progress progress = Progress::kHosted)
      : left{"left", {.progress = progress, .listen = "none", .backends = "memory"}} {}

  struct Seen {
    std::string what;
    const void* id;
    uint32_t priority;
    uint64_t bytes;
    uint64_t moved;
    int32_t status;
    std::string peer;
    std::string backend;
  };
  static void take(void* context, const char* what, const towline_operation_t& operation) {
    static_cast<Hooks*>(context)->seen.push_back({what, operation.id, operation.priority, operation.bytes,
                                                  operation.moved_bytes, operation.status, operation.peer,
                                                  operation.backend});
  }
  towline_hooks_t hooks() {
    return {sizeof(towline_hooks_t), this,
            [](void* context, const towline_operation_t* operation) { take(context, "begin", *operation); },
            [](void* context, const towline_operation_t* operation) { take(context, "end", *operation); }};
  }

  std::vector<std::byte> here = std::vector<std::byte>(8192, std::byte{5});
  std::vector<std::byte> there = std::vector<std::byte>(8192);
  std::vector<Seen> seen;
  Agent left;
  Agent right{"right", {.listen = "none", .backends = "memory"}};
  Region mine = left.register_memory(dram(here.data(), here.size()), {.access = Access::kAll});
  Region theirs = right.register_memory(dram(there.data(), there.size()), {.access = Access::kAll});
  Peer peer = left.add_peer(right.metadata());
  BlockList from = left.block_list(std::vector{Blocks::at(here.data(), here.size())});
  BlockList to = peer.block_list(std::vector{Blocks::at(there.data(), there.size())});
};

TEST_F(Hooks, AreCalledAroundEachRunAndNoMoreWhenTheyAreGone) {
  const Plan plan = left.plan(from, to);
  Transfer transfer = left.transfer(from, to);
  ASSERT_EQ(plan.post().wait(20s), Status::kOk);
  EXPECT_TRUE(seen.empty());
  const towline_hooks_t both = hooks();
  ASSERT_EQ(towline_agent_set_hooks(left.native(), &both), TOWLINE_OK) << last_error();
  ASSERT_EQ(plan.post({.priority = Priority::latency}).wait(20s), Status::kOk);
  ASSERT_FALSE(is_error(transfer.post()));
  ASSERT_EQ(transfer.wait(20s), Status::kOk);
  ASSERT_EQ(seen.size(), 4u);
  for (size_t i = 0; i < 4; i += 2) {
    const Seen& begin = seen[i];
    const Seen& end = seen[i + 1];
    EXPECT_EQ(begin.what, "begin");
    EXPECT_EQ(end.what, "end");
    EXPECT_EQ(begin.id, end.id);
    EXPECT_EQ(begin.bytes, here.size());
    EXPECT_EQ(end.moved, here.size());
    EXPECT_EQ(begin.status, TOWLINE_IN_PROGRESS);
    EXPECT_EQ(end.status, TOWLINE_OK);
    EXPECT_EQ(end.peer, "right");
    EXPECT_EQ(end.backend, "memory");
    EXPECT_EQ(end.priority, i == 0 ? uint32_t{TOWLINE_PRIORITY_LATENCY} : uint32_t{TOWLINE_PRIORITY_BULK});
  }
  ASSERT_EQ(towline_agent_set_hooks(left.native(), nullptr), TOWLINE_OK);
  ASSERT_EQ(plan.post().wait(20s), Status::kOk);
  EXPECT_EQ(seen.size(), 4u);
  EXPECT_EQ(here, there);
}

TEST_F(Hooks, SeeHowACancelledRunEnds) {
  const towline_hooks_t both = hooks();
  ASSERT_EQ(towline_agent_set_hooks(left.native(), &both), TOWLINE_OK);
  ASSERT_EQ(towline_agent_set_hooks(left.native(), &both), TOWLINE_OK) << "again";
  {
    const Plan plan = left.plan(from, to);
    const Post post = plan.post();
    EXPECT_EQ(post.cancel(), Status::kOk);
    (void)post.wait(20s);
  }
  ASSERT_EQ(seen.size(), 2u);
  EXPECT_EQ(seen[1].what, "end");
  EXPECT_TRUE(seen[1].status == TOWLINE_OK || seen[1].status == TOWLINE_CANCELLED);
  ASSERT_EQ(towline_agent_set_hooks(left.native(), nullptr), TOWLINE_OK);
}

// A run that can't be accepted, as its peer has given no credit for its notice, and that is cancelled by the hook that is
// told of it: it is either refused or has one end, never both.
class CancellingHooks : public Hooks {
 protected:
  CancellingHooks()
      : Hooks(Progress::kCaller) {}  // else a post that finds its worker busy waits there for credit

  void SetUp() override {
    const Plan plan = left.plan(from, to);
    const auto until = std::chrono::steady_clock::now() + 20s;
    while (std::chrono::steady_clock::now() < until) {
      const Post post = plan.post({.notice = notice});
      if (!post.accepted()) return;
      ASSERT_EQ(post.wait(20s), Status::kOk) << post.error();
    }
    FAIL() << "credit without end";
  }
  // Its owner waits until this side has let go of it.
  void TearDown() override {
    std::atomic<bool> gone = false;
    std::thread owner([&] {
      EXPECT_EQ(theirs.deregister(20s), Status::kOk) << last_error();
      gone = true;
    });
    while (!gone) (void)left.progress();
    owner.join();
  }
  void call_at_begin(std::function<void()> call) {
    begin_ = std::move(call);
    const towline_hooks_t both = {
        sizeof(towline_hooks_t), this,
        [](void* context, const towline_operation_t*) { static_cast<CancellingHooks*>(context)->begin_(); },
        [](void* context, const towline_operation_t* operation) {
          static_cast<CancellingHooks*>(context)->ends.push_back(operation->status);
        }};
    ASSERT_EQ(towline_agent_set_hooks(left.native(), &both), TOWLINE_OK) << last_error();
  }

  const std::string notice = std::string(4000, 'n');
  std::vector<int32_t> ends;    // that the hook was told
  std::vector<int32_t> called;  // that a callback was

 private:
  std::function<void()> begin_;
};

TEST_F(CancellingHooks, SeeOneEndOfATransferThatIsCancelledBeforeItIsRefused) {
  bool cancels = false;
  const Transfer* cancelled = nullptr;
  call_at_begin([&] {
    if (cancels) (void)cancelled->cancel();
  });
  const Transfer transfer = left.transfer(
      from, to,
      {.notice = notice, .user_data = &called, .callback = [](const towline_completion_t* completion) {
         static_cast<std::vector<int32_t>*>(completion->user_data)->push_back(completion->status);
       }});
  ASSERT_EQ(transfer.post(), Status::kAgain);
  EXPECT_TRUE(called.empty());
  EXPECT_EQ(ends, std::vector<int32_t>{TOWLINE_AGAIN});
  ends.clear();
  cancelled = &transfer;
  cancels = true;
  EXPECT_EQ(transfer.post(), Status::kInProgress);
  EXPECT_EQ(transfer.wait(20s), Status::kCancelled);
  EXPECT_EQ(transfer.wait_fenced(Fence::kBoth, 20s), Status::kOk);
  EXPECT_EQ(called, std::vector<int32_t>{TOWLINE_CANCELLED});
  EXPECT_EQ(ends, std::vector<int32_t>{TOWLINE_CANCELLED});
  cancels = false;
  EXPECT_EQ(transfer.post(), Status::kAgain);
  EXPECT_EQ(called.size(), 1u);
  EXPECT_EQ(ends.back(), TOWLINE_AGAIN);
}

TEST_F(CancellingHooks, SeeOneEndOfAMemberWhoseGroupIsCancelledBeforeItIsRefused) {
  const Plan plan = left.plan(from, to);
  const Group group = left.group({.deadline = 20s});
  call_at_begin([&] { (void)group.cancel(); });
  {
    const Post post = group.post(plan, {.notice = notice});
    ASSERT_TRUE(post.accepted());
    EXPECT_EQ(post.wait(20s), Status::kCancelled);
    EXPECT_EQ(post.wait_fenced(Fence::kBoth, 20s), Status::kOk);
  }
  EXPECT_EQ(ends, std::vector<int32_t>{TOWLINE_CANCELLED});
  EXPECT_EQ(group.wait(20s), Status::kCancelled);
  EXPECT_EQ(group.wait_fenced(Fence::kBoth, 20s), Status::kOk);
  EXPECT_EQ(group.result().members, 1u);
  ASSERT_EQ(towline_agent_set_hooks(left.native(), nullptr), TOWLINE_OK);
  // Its post is as good as new.
  EXPECT_EQ(plan.post().wait(20s), Status::kOk) << last_error();
  EXPECT_EQ(here, there);
}

TEST_F(Hooks, CannotBeChangedWithoutEnd) {
  const towline_hooks_t both = hooks();
  int32_t status = TOWLINE_OK;
  for (int i = 0; i < 100 && status == TOWLINE_OK; ++i)
    status = towline_agent_set_hooks(left.native(), &both);
  EXPECT_EQ(status, TOWLINE_LIMIT_EXCEEDED);
  ASSERT_EQ(towline_agent_set_hooks(left.native(), nullptr), TOWLINE_OK);
}

TEST(Options, OfANewerHeaderAreTakenIfTheirUnknownFieldsAreZero) {
  struct Newer {
    towline_agent_options_t known;
    uint64_t unknown;
  } newer = {};
  newer.known.struct_size = sizeof newer;
  newer.known.listen = "none";
  towline_agent_t* agent = nullptr;
  ASSERT_EQ(towline_agent_create("newer", &newer.known, &agent), TOWLINE_OK) << towline_last_error();
  towline_agent_destroy(agent);
  newer.unknown = 7;
  agent = nullptr;
  EXPECT_EQ(towline_agent_create("newer", &newer.known, &agent), TOWLINE_UNSUPPORTED);
  EXPECT_NE(std::string(towline_last_error()).find("does not have"), std::string::npos)
      << towline_last_error();
  EXPECT_EQ(agent, nullptr);
}

}  // namespace
}  // namespace towline
