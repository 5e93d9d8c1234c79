// Calls that report to a queue, and memory that is short: each has its one event all the same.
#include <gtest/gtest.h>

#include "base/clock.h"
#include "support/failing_new.h"
#include "towline/queue.h"
#include "towline/towline.hpp"

namespace towline {
namespace {

constexpr int kMostAllocations = 5000;

TEST(QueueWithoutMemory, ACallThatFailsHasOneEventWhicheverAllocationFailsToo) {
  towline_agent_options_t options = {};
  options.struct_size = sizeof options;
  options.backends = "memory";
  options.config = "log.level = \"off\"\n";
  options.listen = "none";
  towline_agent_t* agent = nullptr;
  ASSERT_EQ(towline_agent_create("short", &options, &agent), TOWLINE_OK);
  towline_queue_t* queue = nullptr;
  ASSERT_EQ(towline_queue_create(agent, nullptr, &queue), TOWLINE_OK);
  int after = 0;
  for (bool failed = true; failed && after < kMostAllocations; ++after) {
    int mark = 0;
    support::fail_allocations_anywhere(after, 1);
    const int32_t begun =
        towline_peer_connect_async(agent, "unix:@nobody-listens-at-this-address", 0, queue, &mark);
    towline_event_t event = {};
    int32_t count = 0;
    for (const uint64_t until = monotonic_now_ns() + 20 * kSecondNs;
         begun == TOWLINE_OK && count == 0 && monotonic_now_ns() < until;) {
      (void)towline_queue_wait(queue, until);
      count = towline_queue_next(queue, &event, 1, sizeof event);
    }
    failed = support::stop_failing_anywhere();
    ASSERT_LE(begun, TOWLINE_OK);
    ASSERT_EQ(count, begun == TOWLINE_OK ? 1 : 0) << "allocation " << after;
    if (count == 0) continue;
    EXPECT_EQ(event.user_data, &mark);
    EXPECT_TRUE(event.status == TOWLINE_UNREACHABLE || event.status == TOWLINE_OUT_OF_MEMORY)
        << event.status << " " << towline_event_error(&event) << ", allocation " << after;
    EXPECT_STRNE(towline_event_error(&event), "");
    towline_event_release(&event);
  }
  EXPECT_LT(after, kMostAllocations);
  towline_queue_release(queue);
  (void)towline_agent_destroy(agent);
}

TEST(QueueWithoutMemory, AFenceThatCanNotBeWaitedForHoldsNeitherPostNorGroup) {
  std::vector<char> mine(4096);
  std::vector<char> theirs(4096);
  // A post stays in flight until this thread calls in.
  const Agent left{"left", {.progress = Progress::kCaller, .listen = "127.0.0.1:0", .backends = "tcp"}};
  const Agent right{"right", {.listen = "127.0.0.1:0", .backends = "tcp"}};
  const Region here = left.register_memory(dram(mine.data(), mine.size()));
  const Region there = right.register_memory(dram(theirs.data(), theirs.size()), {.access = Access::kAll});
  const Peer peer = left.add_peer(right.metadata());
  const BlockList from = left.block_list(blocks_of(mine.data(), mine.size(), 4096));
  const BlockList to = peer.block_list(blocks_of(theirs.data(), theirs.size(), 4096));
  towline_queue_t* queue = nullptr;
  ASSERT_EQ(towline_queue_create(left.native(), nullptr, &queue), TOWLINE_OK);
  towline_plan_t* plan = nullptr;
  ASSERT_EQ(towline_plan_create(left.native(), from.native(), to.native(), nullptr, &plan), TOWLINE_OK);
  towline_post_options_t options = {};
  options.struct_size = sizeof options;
  towline_post_t* post = nullptr;
  ASSERT_EQ(towline_plan_post(plan, &options, &post), TOWLINE_IN_PROGRESS) << last_error();
  towline_group_t* group = nullptr;
  ASSERT_EQ(towline_group_create(left.native(), nullptr, &group), TOWLINE_OK);
  const auto try_all = [&](const auto& begin) {
    int after = 0;
    for (; after < kMostAllocations; ++after) {
      support::fail_allocations(after, 1);
      const int32_t begun = begin();
      support::stop_failing();
      if (begun == TOWLINE_OK) break;
      EXPECT_TRUE(begun == TOWLINE_OUT_OF_MEMORY || begun == TOWLINE_AGAIN) << begun;  // again: no thread
    }
    EXPECT_GT(after, 0);
    EXPECT_LT(after, kMostAllocations);
  };
  try_all([&] { return towline_post_fence_async(post, TOWLINE_FENCE_LOCAL, queue, nullptr); });
  try_all([&] { return towline_group_fence_async(group, TOWLINE_FENCE_LOCAL, queue, nullptr); });
  EXPECT_EQ(towline_post_wait(post, 20'000'000'000), TOWLINE_OK);
  towline_post_release(post);
  EXPECT_EQ(towline_group_cancel(group), TOWLINE_OK);
  towline_group_release(group);  // a sanitizer sees it if it stays
  towline_event_t event = {};
  for (int told = 0; told < 2; ++told) {
    int32_t count = 0;
    const uint64_t until = monotonic_now_ns() + 20 * kSecondNs;
    while (count == 0 && towline_queue_wait(queue, until) == TOWLINE_OK)
      count = towline_queue_next(queue, &event, 1, sizeof event);
    ASSERT_EQ(count, 1);
    EXPECT_EQ(event.kind, static_cast<uint32_t>(TOWLINE_EVENT_FENCED));
    EXPECT_EQ(event.status, TOWLINE_OK) << towline_event_error(&event);
    towline_event_release(&event);
  }
  EXPECT_EQ(towline_plan_destroy(plan, 5'000'000'000), TOWLINE_OK) << last_error();
  towline_queue_release(queue);
}

}  // namespace
}  // namespace towline
