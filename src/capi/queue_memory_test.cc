// Calls that report to a queue, and memory that is short: each has its one event all the same.
#include <gtest/gtest.h>

#include "base/clock.h"
#include "support/failing_new.h"
#include "towline/queue.h"

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
    for (const Deadline until = Deadline::after(monotonic_now_ns(), 20 * kSecondNs);
         begun == TOWLINE_OK && count == 0 && !until.passed(monotonic_now_ns());) {
      (void)towline_queue_wait(queue, until.ns());
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

}  // namespace
}  // namespace towline
