#include "base/os/futex.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <new>
#include <thread>

#include "base/clock.h"
#include "base/os/memfd.h"

namespace towline {
namespace {

TEST(FutexTest, ReturnsAtOnceWhenTheWordChanged) {
  const std::atomic<uint32_t> word{1};
  EXPECT_EQ(futex_wait(word, 0, kNoDeadline), FutexResult::kChanged);
}

TEST(FutexTest, APassedDeadlineEndsTheWait) {
  const std::atomic<uint32_t> word{0};
  EXPECT_EQ(futex_wait(word, 0, 1), FutexResult::kTimedOut);
  const uint64_t deadline_ns = monotonic_now_ns() + kMillisecondNs;
  while (futex_wait(word, 0, deadline_ns) != FutexResult::kTimedOut) {
  }
  EXPECT_GE(monotonic_now_ns(), deadline_ns);
}

TEST(FutexTest, ThreadsPassATokenBackAndForth) {
  std::atomic<uint32_t> turn{0};
  const auto play = [&](uint32_t parity) {
    for (uint32_t round = parity; round < 2000; round += 2) {
      for (uint32_t seen = turn.load(); seen != round; seen = turn.load())
        futex_wait(turn, seen, kNoDeadline);
      turn.store(round + 1);
      futex_wake_all(turn);
    }
  };
  std::thread other(play, 1);
  play(0);
  other.join();
  EXPECT_EQ(turn.load(), 2000u);
}

TEST(FutexTest, ASharedWakeReachesAnotherProcess) {
  const UniqueFd fd = create_memfd("futex", 4096);
  const Mapping mapping = Mapping::map_shared(fd.get(), 4096, MapAccess::kReadWrite);
  auto* word = ::new (mapping.address()) std::atomic<uint32_t>(0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    while (word->load() == 0) futex_wait(*word, 0, kNoDeadline, FutexScope::kShared);
    _exit(word->load() == 5 ? 0 : 1);
  }
  word->store(5);
  futex_wake_all(*word, FutexScope::kShared);
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace towline
