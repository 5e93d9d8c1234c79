// Threads that make blocking calls on behalf of workers. They start when they are needed, poll for a short
// while after their last work, then sleep.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "storage/posix/bounce.h"
#include "storage/posix/job.h"

namespace towline::posix {

class Pool {
 public:
  Pool(uint32_t most_threads, uint64_t spin_ns) : most_threads_(most_threads), spin_ns_(spin_ns) {}
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;
  // Nobody's jobs are in it any more.
  ~Pool();

  // Up to `helpers` threads work on the job, each with a share of its own. Any thread. False: not one could
  // be asked, for want of memory or threads.
  [[nodiscard]] bool ask(Job& job, uint32_t helpers) noexcept;
  // Takes back what no thread has begun: how many shares the caller must give back.
  [[nodiscard]] uint32_t take_back(Job& job) noexcept;

  [[nodiscard]] uint32_t most_threads() const noexcept { return most_threads_; }
  [[nodiscard]] uint32_t threads() const noexcept { return started_.load(std::memory_order_relaxed); }
  [[nodiscard]] BounceBuffers& buffers() noexcept { return buffers_; }

 private:
  void run() noexcept;
  [[nodiscard]] Job* next() noexcept;

  const uint32_t most_threads_;
  const uint64_t spin_ns_;
  BounceBuffers buffers_;
  std::mutex mutex_;
  std::deque<Job*> asked_;
  std::vector<std::thread> threads_;
  std::atomic<uint32_t> started_{0};
  std::atomic<uint32_t> waiting_{0};  // entries of asked_
  std::atomic<uint32_t> idle_{0};     // threads that look for work or sleep
  std::atomic<uint32_t> sleeping_{0};
  std::atomic<uint32_t> word_{0};  // futex
  std::atomic<bool> stop_{false};
};

}  // namespace towline::posix
