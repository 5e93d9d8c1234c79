#include "base/sync/biased_lock.h"

#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <thread>
#include <vector>

namespace towline {
namespace {

// Turns in a row that make a thread at home.
constexpr int kMany = 200;

void settle(BiasedLock& lock) {
  for (int turn = 0; turn < kMany; ++turn) {
    lock.lock();
    lock.unlock();
  }
}

TEST(BiasedLock, lets_one_in_at_a_time) {
  BiasedLock lock;
  uint64_t count = 0;
  constexpr uint64_t kTurns = 10'000;
  std::vector<std::thread> threads;
  for (uint64_t i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      for (uint64_t turn = 0; turn < kTurns; ++turn) {
        const std::lock_guard guard(lock);
        ++count;
        if (i != 0 && turn % 1000 == 0) std::this_thread::yield();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(count, 4 * kTurns);
}

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

TEST(BiasedLock, is_not_tried_successfully_while_it_is_taken) {
  BiasedLock lock;
  for (int round = 0; round < 3; ++round) {
    lock.lock();
    bool taken = true;
    std::thread([&] { taken = lock.try_lock(); }).join();
    EXPECT_FALSE(taken);
    EXPECT_FALSE(lock.try_lock());
    lock.unlock();
    EXPECT_TRUE(lock.try_lock());
    lock.unlock();
    settle(lock);
  }
}

TEST(BiasedLock, wakes_every_thread_that_sleeps_while_a_thread_at_home_has_it) {
  for (int round = 0; round < 20; ++round) {
    BiasedLock lock;
    settle(lock);
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

TEST(BiasedLock, is_held_on_after_a_try_of_another_thread) {
  BiasedLock lock;
  settle(lock);
  lock.lock();
  std::thread([&] { EXPECT_FALSE(lock.try_lock()); }).join();
  std::atomic<bool> in{false};
  std::thread other([&] {
    const std::lock_guard guard(lock);
    in = true;
  });
  for (int i = 0; i < 200; ++i) std::this_thread::yield();
  EXPECT_FALSE(in.load());
  lock.unlock();
  other.join();
  EXPECT_TRUE(in.load());
}

}  // namespace
}  // namespace towline
