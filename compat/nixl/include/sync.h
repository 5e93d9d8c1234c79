// Source-compatible with NIXL's header of this name: a lock that locks as an agent's synchronization mode says.
#pragma once

#include <mutex>
#include <shared_mutex>

#include <nixl_params.h>
#include "common/util.h"

class nixlLock {
 public:
  explicit nixlLock(const nixl_thread_sync_t mode) noexcept : mode_(mode) {}
  nixlLock(const nixlLock&) = delete;
  nixlLock& operator=(const nixlLock&) = delete;

  void lock() {
    if (locks()) mutex_.lock();
  }
  void unlock() {
    if (locks()) mutex_.unlock();
  }
  void lock_shared() {
    if (shares()) return mutex_.lock_shared();
    lock();
  }
  void unlock_shared() {
    if (shares()) return mutex_.unlock_shared();
    unlock();
  }
  void assertHeld(bool /*writer*/ = true) const noexcept {}

 private:
  [[nodiscard]] bool locks() const noexcept { return mode_ != nixl_thread_sync_t::NIXL_THREAD_SYNC_NONE; }
  [[nodiscard]] bool shares() const noexcept { return mode_ == nixl_thread_sync_t::NIXL_THREAD_SYNC_RW; }

  const nixl_thread_sync_t mode_;
  std::shared_mutex mutex_;
};

#define NIXL_LOCK_GUARD(lock) const std::lock_guard<nixlLock> UNIQUE_NAME(lock_guard)(lock)
#define NIXL_SHARED_LOCK_GUARD(lock) const std::shared_lock<nixlLock> UNIQUE_NAME(lock_guard)(lock)
