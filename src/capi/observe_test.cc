// What the application sees of the library: its log, hooks around operations; and options of another version.
#include "towline/observe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

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
  // A setting that there is not is worth a warning.
  const auto warn = [](const char* config) {
    const Agent agent{"warns", {.listen = "none", .backends = "memory", .config = config}};
  };
  towline_set_log_sink(&Logged::take, &first);
  warn("[memory]\nframez = true\n");
  towline_set_log_sink(&Logged::take, &second);
  warn("[memory]\nringz = true\n");
  towline_set_log_sink(nullptr, nullptr);
  const auto has = [](const Logged& log, const char* what) {
    return std::any_of(log.lines.begin(), log.lines.end(), [&](const auto& line) {
      return line.first == TOWLINE_LOG_WARNING && line.second.find(what) != std::string::npos;
    });
  };
  EXPECT_TRUE(has(first, "memory.framez"));
  EXPECT_TRUE(has(second, "memory.ringz"));
  EXPECT_FALSE(has(first, "memory.ringz"));
}

// Two agents of this process.
class Hooks : public ::testing::Test {
 protected:
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
  Agent left{"left", {.listen = "none", .backends = "memory"}};
  Agent right{"right", {.listen = "none", .backends = "memory"}};
  Region mine = left.register_memory(dram(here.data(), here.size()), {.access = Access::kAll});
  Region theirs = right.register_memory(dram(there.data(), there.size()), {.access = Access::kAll});
  Peer peer = left.add_peer(right.metadata());
  BlockList from = left.block_list(std::vector{Blocks::at(here.data(), here.size())});
  BlockList to = peer.block_list(std::vector{Blocks::at(there.data(), there.size())});
};

TEST_F(Hooks, AreCalledAroundEachRunAndNoMoreWhenTheyAreGone) {
  const Plan plan = left.plan(from, to);
  Transfer transfer = left.transfer(Op::write, from, all, to, all);
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
