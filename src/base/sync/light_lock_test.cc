#include "base/sync/light_lock.h"

#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <thread>
#include <vector>

namespace towline {
namespace {

TEST(LightLock, lets_one_in_at_a_time) {
  LightLock lock;
  uint64_t count = 0;
  constexpr uint64_t kTurns = 20'000;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (uint64_t turn = 0; turn < kTurns; ++turn) {
        const std::lock_guard guard(lock);
        ++count;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(count, 4 * kTurns);
}

TEST(LightLock, is_not_tried_successfully_while_it_is_taken) {
  LightLock lock;
  lock.lock();
  EXPECT_FALSE(lock.try_lock());
  lock.unlock();
  EXPECT_TRUE(lock.try_lock());
  lock.unlock();
}

// Only the last one to sleep could be woken if those that wake forgot the others.
TEST(LightLock, wakes_every_thread_that_sleeps_for_it) {
  for (int round = 0; round < 20; ++round) {
    LightLock lock;
    std::atomic<int> in{0};
    std::vector<std::thread> threads;
    {
      const std::lock_guard guard(lock);
      for (int i = 0; i < 4; ++i) {
        threads.emplace_back([&] {
          const std::lock_guard mine(lock);
          in.fetch_add(1);
        });
      }
      for (int i = 0; i < 200; ++i) std::this_thread::yield();
      EXPECT_EQ(in.load(), 0);
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(in.load(), 4);
  }
}

}  // namespace
}  // namespace towline
