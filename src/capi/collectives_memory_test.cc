// Hooks and windows that are refused for want of memory leave nothing behind.
#include <gtest/gtest.h>

#include "collectives/backend.h"
#include "support/failing_allocations.h"
#include "towline/collectives.h"
#include "towline/towline.hpp"

namespace towline {
namespace {

constexpr int kMostOfACall = 1000;
int windows_open = 0;

// The fake backend with windows that are counted.
const towline_collective_table_v1_t& counting_backend() {
  static const towline_collective_table_v1_t table = [] {
    towline_collective_table_v1_t made = collectives::fake_backend();
    made.window_open = [](towline_collective_backend* backend, void*, uint64_t, uint64_t, uint64_t,
                          towline_collective_window** window) -> int32_t {
      ++windows_open;
      *window = reinterpret_cast<towline_collective_window*>(backend);
      return TOWLINE_OK;
    };
    made.window_close = [](towline_collective_window*, uint64_t, uint64_t) -> int32_t {
      --windows_open;
      return TOWLINE_OK;
    };
    made.window_map = [](towline_collective_window*, int32_t, void**, uint64_t*) -> int32_t {
      return TOWLINE_OK;
    };
    made.window_put = [](towline_collective_window*, int32_t, uint64_t, const void*, uint64_t) -> int32_t {
      return TOWLINE_OK;
    };
    made.window_get = [](towline_collective_window*, int32_t, uint64_t, void*, uint64_t) -> int32_t {
      return TOWLINE_OK;
    };
    made.window_signal = [](towline_collective_window*, int32_t) -> int32_t { return TOWLINE_OK; };
    made.window_wait_signal = [](towline_collective_window*, int32_t, uint64_t) -> int32_t {
      return TOWLINE_OK;
    };
    return made;
  }();
  return table;
}

class CommunicatorWithoutMemory : public ::testing::Test {
 protected:
  CommunicatorWithoutMemory() {
    static const int32_t registered = towline_collective_backend_register("counting", &counting_backend());
    EXPECT_EQ(registered, TOWLINE_OK) << last_error();
    towline_communicator_options_t options = {};
    options.struct_size = sizeof options;
    options.size = 1;
    options.backend = "counting";
    EXPECT_EQ(towline_communicator_create(&options, &communicator_), TOWLINE_OK) << last_error();
  }
  ~CommunicatorWithoutMemory() override { (void)towline_communicator_destroy(communicator_); }

  // With one allocation failing, a later one each time, until none fails: the last call's outcome is OK.
  template <class Call, class Refused>
  void whichever_fails(Call&& call, Refused&& refused) {
    int after = 0;
    for (int32_t status = TOWLINE_OUT_OF_MEMORY; status != TOWLINE_OK && after < kMostOfACall; ++after) {
      support::fail_allocations(after, 1);
      status = call();
      (void)support::stop_failing();
      ASSERT_TRUE(status == TOWLINE_OK || status == TOWLINE_OUT_OF_MEMORY) << status;
      if (status != TOWLINE_OK) refused(after);
    }
    EXPECT_GT(after, 1);
    EXPECT_LT(after, kMostOfACall);
  }

  towline_communicator_t* communicator_ = nullptr;
};

TEST_F(CommunicatorWithoutMemory, CallsNoHookThatItRefused) {
  int calls = 0;
  towline_hook_t* hook = nullptr;
  const auto count = [](void* context, const towline_hook_args_t*) { ++*static_cast<int*>(context); };
  const auto run = [&] {
    towline_collective_t barrier = {};
    barrier.struct_size = sizeof barrier;
    barrier.op = TOWLINE_COLLECTIVE_BARRIER;
    EXPECT_EQ(towline_collective(communicator_, &barrier, nullptr, nullptr), TOWLINE_OK) << last_error();
  };
  whichever_fails(
      [&] { return towline_communicator_hook(communicator_, TOWLINE_HOOK_PRE, count, &calls, &hook); },
      [&](int after) {
        run();
        EXPECT_EQ(calls, 0) << "allocation " << after;
      });
  run();
  EXPECT_EQ(calls, 1);
  towline_hook_remove(hook);
}

TEST_F(CommunicatorWithoutMemory, KeepsNoWindowThatItRefused) {
  towline_window_t* window = nullptr;
  whichever_fails([&] { return towline_window_create(communicator_, nullptr, 64, &window); },
                  [&](int after) { EXPECT_EQ(windows_open, 0) << "allocation " << after; });
  EXPECT_EQ(windows_open, 1);
  EXPECT_EQ(towline_window_destroy(window, 1'000'000'000), TOWLINE_OK) << last_error();
  EXPECT_EQ(windows_open, 0);
}

}  // namespace
}  // namespace towline
