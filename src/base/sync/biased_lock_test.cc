#include "base/sync/biased_lock.h"

#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <thread>
#include <vector>

namespace towline {
namespace {

// The visitor ends what the other thread has just begun, again and again.
TEST(BiasedLock, keeps_a_rare_visitor_and_the_thread_at_home_apart) {
  BiasedLock lock;
  uint64_t count = 0;
  std::atomic<uint64_t> visits{0};
  std::atomic<bool> over{false};
  std::thread visitor([&] {
    for (int visit = 0; visit < 12; ++visit) {
      {
        const std::lock_guard guard(lock);
        ++count;
        ++visits;
      }
      for (int i = 0; i < 50; ++i) std::this_thread::yield();
    }
    over = true;
  });
  uint64_t turns = 0;
  while (!over) {
    const std::lock_guard guard(lock);
    ++count;
    ++turns;
  }
  visitor.join();
  EXPECT_EQ(count, turns + visits);
}

}  // namespace
}  // namespace towline
