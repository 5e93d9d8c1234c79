// Groups, and memory that is short: what is refused or ends has its status all the same.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "base/clock.h"
#include "support/failing_allocations.h"
#include "towline/plan.h"
#include "towline/towline.hpp"

namespace towline {
namespace {

constexpr int kMostAllocations = 1000;
constexpr uint64_t kSoon = 20'000'000'000;

class GroupWithoutMemory : public ::testing::Test {
 protected:
  GroupWithoutMemory()
      : here_(agent_.register_memory(dram(memory_.data(), memory_.size()))),
        from_(agent_.block_list(blocks_of(memory_.data(), memory_.size() / 2, 4096))),
        to_(agent_.block_list(blocks_of(memory_.data() + memory_.size() / 2, memory_.size() / 2, 4096))) {
    EXPECT_EQ(towline_plan_create(agent_.native(), from_.native(), to_.native(), nullptr, &plan_),
              TOWLINE_OK);
    options_.struct_size = sizeof options_;
  }
  ~GroupWithoutMemory() override { EXPECT_EQ(towline_plan_destroy(plan_, kSoon), TOWLINE_OK); }

  towline_group_t* make(uint64_t deadline_ns = 0) {
    towline_group_options_t options = {};
    options.struct_size = sizeof options;
    options.deadline_ns = deadline_ns;
    towline_group_t* group = nullptr;
    EXPECT_EQ(towline_group_create(agent_.native(), &options, &group), TOWLINE_OK) << last_error();
    return group;
  }
  // Runs `attempt` with one allocation failing, a later one each time, until none is left to fail.
  template <class Attempt>
  void whichever_fails(Attempt&& attempt) {
    bool failed = true;
    int after = 0;
    for (; failed && after < kMostAllocations; ++after) failed = attempt(after);
    EXPECT_LT(after, kMostAllocations);
  }

  // False: none has failed.
  static bool stop_failing() {
    const bool failed = support::allocations_left < 0;
    (void)support::stop_failing();
    return failed;
  }

  std::vector<char> memory_ = std::vector<char>(32 * 4096);
  const Agent agent_{"short", {.listen = "none", .backends = "memory"}};
  const Region here_;
  const BlockList from_;
  const BlockList to_;
  towline_plan_t* plan_ = nullptr;
  towline_post_options_t options_ = {};
};

TEST_F(GroupWithoutMemory, AMemberThatIsRefusedEndsIt) {
  const uint32_t none_such[] = {99};
  whichever_fails([&](int after) {
    towline_group_t* const group = make();
    options_.group = group;
    options_.from = {none_such, 4, 0, 0, 0, 1};
    support::fail_allocations(after, 1);
    const int32_t posted = towline_plan_post(plan_, &options_, nullptr);
    const bool failed = stop_failing();
    EXPECT_TRUE(posted == TOWLINE_OUT_OF_RANGE || posted == TOWLINE_OUT_OF_MEMORY) << posted;
    EXPECT_TRUE(towline_group_poll(group) == posted || posted == TOWLINE_OUT_OF_MEMORY);
    towline_group_release(group);
    return failed;
  });
}

TEST_F(GroupWithoutMemory, AClosedOneRefusesMembersAndASecondEnd) {
  whichever_fails([&](int after) {
    towline_group_t* const group = make();
    EXPECT_EQ(towline_group_close(group), TOWLINE_OK);
    options_.group = group;
    support::fail_allocations(after, 1);
    const int32_t posted = towline_plan_post(plan_, &options_, nullptr);
    const int32_t closed = towline_group_close(group);
    const bool failed = stop_failing();
    EXPECT_TRUE(posted == TOWLINE_INVALID_ARGUMENT || posted == TOWLINE_OUT_OF_MEMORY) << posted;
    EXPECT_EQ(closed, TOWLINE_INVALID_ARGUMENT);
    towline_group_release(group);
    return failed;
  });
}

TEST_F(GroupWithoutMemory, ADeadlineOrAReleaseEndsIt) {
  whichever_fails([&](int after) {
    towline_group_t* const group = make(monotonic_now_ns() + 20 * kMillisecondNs);
    support::fail_allocations(after, 1);
    const int32_t ended = towline_group_wait(group, kSoon);
    const bool failed = stop_failing();
    EXPECT_EQ(ended, TOWLINE_TIMED_OUT);
    towline_group_release(group);
    return failed;
  });
  whichever_fails([&](int after) {
    towline_group_t* const group = make();
    support::fail_allocations(after, 1);
    towline_group_release(group);
    return stop_failing();
  });
}

}  // namespace
}  // namespace towline
