#include "base/sync/in_use.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>
#include <vector>

namespace towline {
namespace {

TEST(InUse, isSeenWhileItLasts) {
  const int object = 0;
  EXPECT_FALSE(InUse::by_any(&object));
  {
    const InUse use(&object);
    ASSERT_TRUE(use);
    InUse::publish();
    EXPECT_TRUE(InUse::by_any(&object));
    EXPECT_FALSE(InUse::by_any(&use));
  }
  EXPECT_FALSE(InUse::by_any(&object));
}

TEST(InUse, endsWithItsThread) {
  const int object = 0;
  for (int i = 0; i < 100; ++i) {
    std::thread([&] { const InUse use(&object); }).join();
    EXPECT_FALSE(InUse::by_any(&object));
  }
}

// Users read what the owner destroys: none may still be reading then.
TEST(InUse, nobodyIsLeftAfterTheOwnerHasWaited) {
  constexpr int kRounds = 300;
  struct Thing {
    std::atomic<bool> closed{true};
    std::atomic<uint64_t> value{0};
  } thing;
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> torn{0};
  std::atomic<uint64_t> used{0};
  std::vector<std::thread> users;
  for (int i = 0; i < 3; ++i) {
    users.emplace_back([&] {
      while (!stop.load(std::memory_order_relaxed)) {
        if (thing.closed.load(std::memory_order_relaxed)) {
          std::this_thread::yield();
          continue;
        }
        const InUse use(&thing);
        if (thing.closed.load(std::memory_order_acquire)) continue;
        for (int look = 0; look < 8; ++look)
          if (thing.value.load(std::memory_order_relaxed) == 0) torn.fetch_add(1);
        used.fetch_add(1, std::memory_order_relaxed);
      }
    });
  }
  for (int round = 0; round < kRounds || used.load() == 0; ++round) {
    thing.value.store(1, std::memory_order_relaxed);
    thing.closed.store(false, std::memory_order_seq_cst);
    std::this_thread::yield();
    thing.closed.store(true, std::memory_order_seq_cst);
    InUse::publish();
    while (InUse::by_any(&thing)) std::this_thread::yield();
    thing.value.store(0, std::memory_order_relaxed);
  }
  stop = true;
  for (std::thread& user : users) user.join();
  EXPECT_EQ(torn.load(), 0u);
  EXPECT_GT(used.load(), 0u);
}

TEST(InUse, aForkedChildDoesNotWaitForItsParentsThreads) {
  const int object = 0;
  std::atomic<int> state{0};
  std::thread user([&] {
    const InUse use(&object);
    state = 1;
    while (state != 2) std::this_thread::yield();
  });
  while (state != 1) std::this_thread::yield();
  const pid_t child = fork();
  if (child == 0) {
    InUse::publish();
    _exit(InUse::by_any(&object) ? 1 : 0);
  }
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(InUse::by_any(&object));
  state = 2;
  user.join();
}

}  // namespace
}  // namespace towline
