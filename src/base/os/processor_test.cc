#include "base/os/processor.h"

#include <gtest/gtest.h>

#include <thread>

namespace towline {
namespace {

cpu_set_t allowed() {
  cpu_set_t set;
  CPU_ZERO(&set);
  EXPECT_EQ(::sched_getaffinity(0, sizeof set, &set), 0);
  return set;
}

TEST(Processor, AThreadLeavesItAndMayComeBack) {
  const cpu_set_t before = allowed();
  if (CPU_COUNT(&before) < 2) GTEST_SKIP() << "this process may use one processor only";
  std::thread([&] {
    bool left = false;
    for (int tries = 0; tries < 100 && !left; ++tries) {  // the system may move it at any time
      const int here = current_processor();
      leave_processor(here);
      left = current_processor() != here;
    }
    EXPECT_TRUE(left);
    const cpu_set_t after = allowed();
    EXPECT_TRUE(CPU_EQUAL(&before, &after));
  }).join();
}

TEST(Processor, AThreadThatMayRunNowhereElseStays) {
  std::thread([] {
    const int here = current_processor();
    cpu_set_t only;
    CPU_ZERO(&only);
    CPU_SET(here, &only);
    ASSERT_EQ(::sched_setaffinity(0, sizeof only, &only), 0);
    leave_processor(here);
    leave_processor(-1);
    const cpu_set_t after = allowed();
    EXPECT_TRUE(CPU_EQUAL(&only, &after));
  }).join();
}

}  // namespace
}  // namespace towline
