// Words that GPUs write and this side watches: a kernel stores a number, and a callback gets the old and the
// new one. The words lie in pinned host memory that GPUs reach, so that no copy is needed to see them.
//
// A number that is overwritten before the thread looks is never told. On a processor of its own the thread
// looks without a pause; else it naps when nothing changes, and changes are told up to nap_ns later.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/os/memfd.h"
#include "gpu/device.h"

namespace towline::fabric {

struct WatcherOptions {
  cuda::Device* device =
      nullptr;   // whose GPUs reach the words; null: only this process does. It must have started
  int cpu = -1;  // that the thread runs on alone; -1: any
  uint64_t nap_ns = 50 * kMicrosecondNs;
};

class Watchers {
 public:
  static constexpr uint32_t kWords = 512;
  static constexpr uint64_t kHostBytes = kWords * sizeof(uint64_t);
  // On the thread. False: do not look at the word any more. It may watch and unwatch words, also its own.
  using Changed = std::function<bool(uint64_t old_value, uint64_t new_value)>;

  // Throws Error where the memory can't be pinned or the thread can't run on its processor.
  explicit Watchers(WatcherOptions options);
  ~Watchers();
  Watchers(const Watchers&) = delete;
  Watchers& operator=(const Watchers&) = delete;

  struct Word {
    uint32_t index = 0;
    uint64_t* host = nullptr;
    uint64_t gpu = 0;  // its address for kernels
  };
  // A word of value 0. Throws Error when all are taken.
  Word watch(Changed changed);
  // Its callback is not called any more once this returns, and the word may be given out again.
  void unwatch(uint32_t index);
  // Ends the thread: nothing is watched any more once this returns. Words stay, and may be given back.
  void end() noexcept;

 private:
  struct Watched {
    bool used = false;
    bool watched = false;
    uint64_t number = 0;  // of no other
    uint64_t seen = 0;
    Changed changed;  // empty while it is called
  };

  // The thread holds the lock while it calls back.
  [[nodiscard]] std::unique_lock<std::mutex> hold();
  uint64_t word_address(uint32_t index) const noexcept;
  void run() noexcept;
  bool look() noexcept;

  WatcherOptions options_;
  Mapping words_;
  std::unique_ptr<cuda::Pinned> pinned_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Watched> watched_;
  uint32_t in_use_ = 0;
  uint64_t last_number_ = 0;
  std::atomic<bool> closing_{false};
  std::thread thread_;
};

}  // namespace towline::fabric
