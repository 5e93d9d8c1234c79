// A mutex for locks that nearly always the same thread takes. After some turns in a row that thread is *at home*: it takes
// the lock and gives it back with plain stores. A locked instruction waits for all earlier stores and holds up all later
// loads, so two of them show in an operation of a few bytes. Another thread that wants the lock ends this: it makes the
// kernel run a fence on every processor of this process (InUse::publish), which takes microseconds. Then the lock is an
// ordinary one until the first thread at home has had twice as many turns in a row.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstdint>

#include "base/clock.h"
#include "base/os/futex.h"
#include "base/sync/in_use.h"
#include "base/sync/light_lock.h"

namespace towline {

// Used with std::lock_guard and std::unique_lock. Not recursive; threads get it in no order. unlock() reads the lock once more
// after it has released it, so the next thread that has it must not destroy it.
class BiasedLock {
 public:
  BiasedLock() noexcept : may_be_at_home_(InUse::publishes()) {}
  BiasedLock(const BiasedLock&) = delete;
  BiasedLock& operator=(const BiasedLock&) = delete;

  void lock() noexcept {
    if (!enter_at_home()) [[unlikely]]
      lock_away();
  }
  bool try_lock() noexcept { return enter_at_home() || try_lock_away(); }
  void unlock() noexcept {
    if (!at_home_) {
      lock_.unlock();
      return;
    }
    inside_.store(0, std::memory_order_release);
    std::atomic_signal_fence(std::memory_order_seq_cst);
    if (home_.load(std::memory_order_relaxed) == kNobody) [[unlikely]]
      futex_wake_all(inside_);
  }

 private:
  static constexpr pthread_t kNobody = 0;
  static constexpr uint32_t kFirstTurns = 64;
  static constexpr uint32_t kMostTurns = 1U << 20;

  // Either the thread that ends this sees `inside_` after its fence, or this thread sees that it is at home no more.
  bool enter_at_home() noexcept {
    const pthread_t me = ::pthread_self();
    if (home_.load(std::memory_order_relaxed) != me || inside_.load(std::memory_order_relaxed) != 0)
      return false;
    inside_.store(1, std::memory_order_relaxed);
    std::atomic_signal_fence(std::memory_order_seq_cst);
    if (home_.load(std::memory_order_acquire) == me) [[likely]] {
      at_home_ = true;
      return true;
    }
    inside_.store(0, std::memory_order_release);
    futex_wake_all(inside_);
    return false;
  }

  [[gnu::cold, gnu::noinline]] void lock_away() noexcept {
    lock_.lock();
    end_home();
    while (inside_.load(std::memory_order_acquire) != 0) futex_wait(inside_, 1, kNoDeadline);
    took_away();
  }
  [[gnu::noinline]] bool try_lock_away() noexcept {
    if (!lock_.try_lock()) return false;
    end_home();
    if (inside_.load(std::memory_order_acquire) != 0) {
      lock_.unlock();
      return false;
    }
    took_away();
    return true;
  }

  // lock_ is held in those below.
  void end_home() noexcept {
    if (home_.load(std::memory_order_relaxed) == kNobody) return;
    home_.store(kNobody, std::memory_order_seq_cst);
    InUse::publish();
    if (turns_needed_ < kMostTurns) turns_needed_ *= 2;
    last_ = kNobody;
  }
  // The lock is taken: nobody is inside.
  void took_away() noexcept {
    at_home_ = false;
    const pthread_t me = ::pthread_self();
    if (last_ != me) {
      last_ = me;
      turns_ = 0;
      return;
    }
    if (++turns_ < turns_needed_ || !may_be_at_home_ || (only_ != kNobody && only_ != me)) return;
    only_ = me;
    at_home_ = true;
    inside_.store(1, std::memory_order_relaxed);
    home_.store(me, std::memory_order_release);
    lock_.unlock();
  }

  const bool may_be_at_home_;
  std::atomic<pthread_t> home_{kNobody};
  // 1: a thread at home has the lock, or is about to see that it is not at home.
  std::atomic<uint32_t> inside_{0};
  bool at_home_ = false;      // of the thread that has the lock
  LightLock lock_;            // away from home
  pthread_t last_ = kNobody;  // had the lock last, under lock_
  // The first thread at home, and no other can be. It may be stopped just before it sets `inside_`, and clears it again
  // however much later, when another thread at home would rely on it.
  pthread_t only_ = kNobody;
  uint32_t turns_ = 0;
  uint32_t turns_needed_ = kFirstTurns;
};

}  // namespace towline
