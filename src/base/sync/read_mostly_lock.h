// A lock that is often taken to read and rarely to write. A reader takes no locked instruction; the writer
// pays by a fence on all processors of the process (see in_use.h).
//
//   readers: const ReadMostlyLock::Reader reader(lock);
//   writers: const std::lock_guard guard(lock);
#pragma once

#include <time.h>

#include <atomic>
#include <mutex>
#include <shared_mutex>

#include "base/sync/in_use.h"
#include "base/sync/spin.h"

namespace towline {

class ReadMostlyLock {
 public:
  // No two at a time in one thread, as with InUse.
  class Reader {
   public:
    explicit Reader(const ReadMostlyLock& lock) : use_(&lock) {
      if (use_ && !lock.writing_.load(std::memory_order_acquire)) [[likely]]
        return;
      use_.end();
      waiting_ = std::shared_lock(lock.mutex_);
    }

   private:
    InUse use_;
    std::shared_lock<std::shared_mutex> waiting_;  // of those that came while a writer was there
  };

  void lock() {
    mutex_.lock();
    writing_.store(true, std::memory_order_relaxed);
    InUse::publish();
    SpinWait spin;
    while (InUse::by_any(this)) {
      constexpr timespec kPause{0, 20'000};
      if (!spin.again()) nanosleep(&kPause, nullptr);
    }
  }
  void unlock() {
    writing_.store(false, std::memory_order_release);
    mutex_.unlock();
  }

 private:
  mutable std::shared_mutex mutex_;
  std::atomic<bool> writing_{false};
};

}  // namespace towline
