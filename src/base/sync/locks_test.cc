// What every lock of this folder that std::lock_guard takes promises.
#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <thread>
#include <vector>

#include "base/sync/biased_lock.h"
#include "base/sync/light_lock.h"

namespace towline {
namespace {

template <class Lock>
class Locks : public ::testing::Test {
 protected:
  // From here on this thread is at home in a BiasedLock.
  static void settle(Lock& lock) {
    constexpr int kTurns = 200;
    for (int turn = 0; turn < kTurns; ++turn) const std::lock_guard guard(lock);
  }

  Lock lock_;
};

using AllLocks = ::testing::Types<LightLock, BiasedLock>;
TYPED_TEST_SUITE(Locks, AllLocks, );

TYPED_TEST(Locks, let_one_in_at_a_time) {
  uint64_t count = 0;
  constexpr uint64_t kTurns = 10'000;
  std::vector<std::thread> threads;
  for (uint64_t i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      for (uint64_t turn = 0; turn < kTurns; ++turn) {
        const std::lock_guard guard(this->lock_);
        ++count;
        if (i != 0 && turn % 1000 == 0) std::this_thread::yield();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(count, 4 * kTurns);
}

TYPED_TEST(Locks, are_not_tried_successfully_while_they_are_taken) {
  for (int round = 0; round < 3; ++round) {
    this->lock_.lock();
    bool taken = true;
    std::thread([&] { taken = this->lock_.try_lock(); }).join();
    EXPECT_FALSE(taken);
    EXPECT_FALSE(this->lock_.try_lock());
    this->lock_.unlock();
    EXPECT_TRUE(this->lock_.try_lock());
    this->lock_.unlock();
    this->settle(this->lock_);
  }
}

// Only the last one to sleep could be woken if those that wake forgot the others.
TYPED_TEST(Locks, wake_every_thread_that_sleeps_for_them) {
  for (int round = 0; round < 20; ++round) {
    TypeParam lock;
    this->settle(lock);
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

TYPED_TEST(Locks, are_held_on_after_a_try_of_another_thread) {
  this->settle(this->lock_);
  this->lock_.lock();
  std::thread([&] { EXPECT_FALSE(this->lock_.try_lock()); }).join();
  std::atomic<bool> in{false};
  std::thread other([&] {
    const std::lock_guard guard(this->lock_);
    in = true;
  });
  for (int i = 0; i < 200; ++i) std::this_thread::yield();
  EXPECT_FALSE(in.load());
  this->lock_.unlock();
  other.join();
  EXPECT_TRUE(in.load());
}

}  // namespace
}  // namespace towline
