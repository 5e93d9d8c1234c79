#include "agent/errands.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>

#include "base/error.h"

namespace {

std::atomic<int> waits_by_the_wall_clock{0};  // of threads other than the first

}  // namespace

// In place of the C library's, for the library as well: a wait until a time of the clock that an administrator or NTP sets.
extern "C" [[gnu::visibility("default")]] int pthread_cond_timedwait(pthread_cond_t* condition,
                                                                     pthread_mutex_t* mutex,
                                                                     const timespec* until) {
  if (::gettid() != ::getpid()) ++waits_by_the_wall_clock;
  return ::pthread_cond_clockwait(condition, mutex, CLOCK_REALTIME, until);
}

namespace towline {
namespace {

// Holds errands that block, and counts them.
class Gate {
 public:
  void wait() {
    std::unique_lock lock(mutex_);
    ++begun_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return open_; });
    ++ended_;
    changed_.notify_all();
  }
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  bool have_begun(size_t count) { return reached(begun_, count); }
  bool have_ended(size_t count) { return reached(ended_, count); }
  size_t begun() {
    const std::lock_guard lock(mutex_);
    return begun_;
  }

 private:
  bool reached(const size_t& counter, size_t count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(60), [&] { return counter >= count; });
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
  size_t begun_ = 0;
  size_t ended_ = 0;
};

class BlockingCall final : public Errand {
 public:
  explicit BlockingCall(Gate& gate) : gate_(gate) {}
  bool blocks() const noexcept override { return true; }
  bool step(bool) noexcept override {
    gate_.wait();
    return true;
  }

 private:
  Gate& gate_;
};

// Over at its third step, as a fence that comes later, or when the agent closes.
class Fence final : public Errand {
 public:
  Fence(Gate& gate, int steps) : gate_(gate), left_(steps) {}
  bool step(bool closing) noexcept override {
    if (--left_ > 0 && !closing) return false;
    gate_.wait();
    return true;
  }

 private:
  Gate& gate_;
  int left_;
};

TEST(Errands, CallsThatBlockHoldUpNeitherOneAnotherNorFences) {
  constexpr size_t kCalls = 100;
  Gate calls;
  Gate fences;
  fences.open();
  Errands errands(true);
  for (size_t i = 0; i < kCalls; ++i) errands.add(std::make_unique<BlockingCall>(calls));
  EXPECT_TRUE(calls.have_begun(kCalls)) << calls.begun() << " have begun";
  errands.add(std::make_unique<Fence>(fences, 3));
  EXPECT_TRUE(fences.have_ended(1));
  calls.open();
  EXPECT_TRUE(calls.have_ended(kCalls));
  errands.finish();
}

TEST(Errands, BeyondTheMostThatBlockCallsWaitForTheirTurn) {
  Gate calls;
  Gate fences;
  fences.open();
  Errands errands(true);
  for (size_t i = 0; i < Errands::kMostCalls + 8; ++i) errands.add(std::make_unique<BlockingCall>(calls));
  EXPECT_TRUE(calls.have_begun(Errands::kMostCalls));
  errands.add(std::make_unique<Fence>(fences, 3));
  EXPECT_TRUE(fences.have_ended(1)) << "fences have threads of their own";
  EXPECT_EQ(calls.begun(), Errands::kMostCalls);
  EXPECT_LE(errands.threads(), Errands::kMostCalls + 2);
  calls.open();
  EXPECT_TRUE(calls.have_ended(Errands::kMostCalls + 8));
}

// Set back by an hour, the wall clock would keep a fence from being told for an hour.
TEST(Errands, WaitByAClockThatNobodySets) {
  Gate gate;
  gate.open();
  Errands errands(true);
  waits_by_the_wall_clock = 0;
  errands.add(std::make_unique<BlockingCall>(gate));
  errands.add(std::make_unique<Fence>(gate, 8));
  EXPECT_TRUE(gate.have_ended(2));
  errands.finish();
  EXPECT_EQ(waits_by_the_wall_clock, 0);
}

TEST(Errands, ClosingEndsWhatWaitsAndRefusesMore) {
  Gate fences;
  fences.open();
  Errands errands(true);
  for (int i = 0; i < 10; ++i) errands.add(std::make_unique<Fence>(fences, 1 << 30));
  errands.finish();
  EXPECT_TRUE(fences.have_ended(10));
  EXPECT_EQ(errands.threads(), 0u);
  try {
    errands.add(std::make_unique<Fence>(fences, 1));
    ADD_FAILURE() << "it is closed";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Status::kClosed);
  }
}

}  // namespace
}  // namespace towline
