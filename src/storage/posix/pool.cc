#include "storage/posix/pool.h"

#include <algorithm>

#include "base/clock.h"
#include "base/futex.h"
#include "storage/posix/job_queue.h"

namespace towline::posix {

Pool::~Pool() {
  stop_.store(true, std::memory_order_seq_cst);
  word_.fetch_add(1, std::memory_order_seq_cst);
  futex_wake_all(word_);
  for (std::thread& thread : threads_) thread.join();
}

bool Pool::ask(Job& job, uint32_t helpers) noexcept {
  uint32_t asked = 0;
  try {
    std::lock_guard lock(mutex_);
    for (; asked < helpers; ++asked) {
      asked_.push_back(&job);
      job.add_share();
    }
    const uint32_t waiting = waiting_.fetch_add(helpers, std::memory_order_seq_cst) + helpers;
    while (threads_.size() < most_threads_ && idle_.load(std::memory_order_relaxed) < waiting) {
      threads_.reserve(most_threads_);
      idle_.fetch_add(1, std::memory_order_relaxed);
      try {
        threads_.emplace_back([this] { run(); });
      } catch (...) {
        idle_.fetch_sub(1, std::memory_order_relaxed);
        if (threads_.empty()) throw;
        break;
      }
      started_.fetch_add(1, std::memory_order_relaxed);
    }
  } catch (...) {
    // Out of memory before anything was asked, or not one thread to be had.
    std::lock_guard lock(mutex_);
    if (threads_.empty()) {
      waiting_.fetch_sub(static_cast<uint32_t>(std::erase(asked_, &job)), std::memory_order_relaxed);
      for (; asked != 0; --asked) (void)job.give_share();
      return false;
    }
  }
  if (sleeping_.load(std::memory_order_seq_cst) != 0) {
    word_.fetch_add(1, std::memory_order_seq_cst);
    futex_wake(word_, asked);
  }
  return asked != 0;
}

uint32_t Pool::take_back(Job& job) noexcept {
  std::lock_guard lock(mutex_);
  const auto count = static_cast<uint32_t>(std::erase(asked_, &job));
  waiting_.fetch_sub(count, std::memory_order_relaxed);
  return count;
}

Job* Pool::next() noexcept {
  if (waiting_.load(std::memory_order_seq_cst) == 0) return nullptr;
  std::lock_guard lock(mutex_);
  if (asked_.empty()) return nullptr;
  Job* job = asked_.front();
  asked_.pop_front();
  waiting_.fetch_sub(1, std::memory_order_relaxed);
  idle_.fetch_sub(1, std::memory_order_relaxed);
  return job;
}

void Pool::run() noexcept {
  uint64_t spin_until_ns = monotonic_now_ns() + spin_ns_;
  while (!stop_.load(std::memory_order_relaxed)) {
    if (Job* job = next(); job != nullptr) {
      job->help(buffers_);
      idle_.fetch_add(1, std::memory_order_relaxed);
      JobQueue& queue = *job->prepared().queue;
      if (job->give_share()) queue.finished(*job);
      spin_until_ns = monotonic_now_ns() + spin_ns_;
      continue;
    }
    if (monotonic_now_ns() < spin_until_ns) {
      cpu_pause();
      continue;
    }
    sleeping_.fetch_add(1, std::memory_order_seq_cst);
    const uint32_t seen = word_.load(std::memory_order_seq_cst);
    if (waiting_.load(std::memory_order_seq_cst) == 0 && !stop_.load(std::memory_order_seq_cst))
      futex_wait(word_, seen, kNoDeadline);
    sleeping_.fetch_sub(1, std::memory_order_seq_cst);
    spin_until_ns = monotonic_now_ns() + spin_ns_;
  }
}

}  // namespace towline::posix
