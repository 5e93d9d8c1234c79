// Threads that make blocking calls on behalf of workers. They start when they are needed, poll for a short
// while after their last work, then sleep.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "base/sync/urgent_first.h"
#include "storage/posix/bounce.h"
#include "storage/posix/job.h"

namespace towline::posix {

class Pool {
 public:
  // `most_handed`: of the threads, how many at most work on jobs that were handed over at once.
  Pool(uint32_t most_threads, uint32_t most_handed, uint64_t spin_ns)
      : most_threads_(most_threads), most_handed_(most_handed), spin_ns_(spin_ns) {}
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;
  // Nobody's jobs are in it any more.
  ~Pool();

  // Up to `helpers` threads work on the job, each with a share of its own. Any thread. False: not one could
  // be asked, for want of memory or threads.
  [[nodiscard]] bool ask(Job& job, uint32_t helpers) noexcept;

  enum class Handed {
    kNot,    // for want of memory or threads
    kBegun,  // a thread begins at once
    kLater,  // when one has ended another job; the caller may work on it meanwhile
  };
  // One thread works on the job, with its own share, instead of the worker. Few threads do this, so that they do not take
  // the worker's processor, and at most one per written file, since others would wait for the file's lock. Any thread.
  [[nodiscard]] Handed hand_over(Job& job) noexcept;
  // Takes back entries that no thread has begun; returns the number of shares that the caller must give back.
  [[nodiscard]] uint32_t take_back(Job& job) noexcept;

  [[nodiscard]] uint32_t most_threads() const noexcept { return most_threads_; }
  [[nodiscard]] uint32_t most_handed() const noexcept { return most_handed_; }
  [[nodiscard]] uint32_t threads() const noexcept { return started_.load(std::memory_order_relaxed); }
  [[nodiscard]] BounceBuffers& buffers() noexcept { return buffers_; }

 private:
  struct Taken {
    Job* job = nullptr;
    bool handed = false;
  };

  void run() noexcept;
  void work(const Taken& taken, bool beside) noexcept;
  [[nodiscard]] Taken next() noexcept;
  void help_urgent() noexcept;
  void handed_ended(const Job& job) noexcept;
  // Under the lock: whether a thread may begin it, how many may be begun, and telling those that look.
  [[nodiscard]] bool may_begin(const Job& job) const noexcept;
  [[nodiscard]] bool is_written(const Job& job) const noexcept;
  [[nodiscard]] Taken first(bool urgent, bool beside) const noexcept;
  void take(const Taken& taken) noexcept;
  void count_waiting() noexcept;
  void start_threads() noexcept;
  void wake(uint32_t threads) noexcept;

  const uint32_t most_threads_;
  const uint32_t most_handed_;
  const uint64_t spin_ns_;
  BounceBuffers buffers_;
  std::mutex mutex_;
  std::deque<Job*> asked_;
  std::deque<Job*> handed_;
  std::vector<const File*> handed_files_;  // of the handed over that threads work on; null: it reads
  std::vector<std::thread> threads_;
  std::atomic<uint32_t> started_{0};
  std::atomic<uint32_t> waiting_{0};  // entries that a thread may begin
  std::atomic<uint32_t> urgent_{0};   // urgent entries
  UrgentFirst turns_;
  std::atomic<uint32_t> idle_{0};  // threads that look for work or sleep
  std::atomic<uint32_t> sleeping_{0};
  std::atomic<uint32_t> word_{0};  // futex
  std::atomic<bool> stop_{false};
};

}  // namespace towline::posix
