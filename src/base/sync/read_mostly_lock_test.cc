#include "base/sync/read_mostly_lock.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace towline {
namespace {

TEST(ReadMostlyLock, lets_readers_in_together) {
  const ReadMostlyLock lock;
  const ReadMostlyLock::Reader reader(lock);
  std::thread([&] { const ReadMostlyLock::Reader other(lock); }).join();
}

TEST(ReadMostlyLock, has_writers_wait_for_readers) {
  ReadMostlyLock lock;
  std::atomic<bool> wrote{false};
  std::thread writer;
  {
    const ReadMostlyLock::Reader reader(lock);
    writer = std::thread([&] {
      const std::lock_guard guard(lock);
      wrote.store(true);
    });
    for (int i = 0; i < 100; ++i) std::this_thread::yield();
    EXPECT_FALSE(wrote.load());
  }
  writer.join();
  EXPECT_TRUE(wrote.load());
}

TEST(ReadMostlyLock, shows_readers_no_half_of_a_change) {
  ReadMostlyLock lock;
  uint64_t first = 0;
  uint64_t second = 0;
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> reads{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      while (!stop.load(std::memory_order_relaxed)) {
        const ReadMostlyLock::Reader reader(lock);
        EXPECT_EQ(first, second);
        reads.fetch_add(1, std::memory_order_relaxed);
      }
    });
  }
  const auto write = [&] {
    const std::lock_guard guard(lock);
    ++first;
    ++second;
  };
  std::thread other([&] {
    for (int i = 0; i < 300; ++i) write();
  });
  for (int i = 0; i < 300 || reads.load() < 1000; ++i) write();
  other.join();
  stop.store(true);
  for (std::thread& thread : threads) thread.join();
  EXPECT_GE(first, 600U);
}

}  // namespace
}  // namespace towline
