#include "agent/errands.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

#include "base/clock.h"
#include "base/error.h"

namespace towline {

namespace {
constexpr uint64_t kFirstPauseNs = 20 * kMicrosecondNs;
constexpr uint64_t kLongestPauseNs = 2 * kMillisecondNs;
}  // namespace

void Errands::add(std::unique_ptr<Errand> errand) {
  if (!in_real_time_) {
    while (!errand->step(false)) {
    }
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    if (closing_.load(std::memory_order_relaxed)) fail(Status::kClosed, "the agent has been closed");
    if (waiting_.size() >= kMostWaiting)
      fail(Status::kAgain, "{} calls wait for their turn already", waiting_.size());
    if (idle_ <= fresh_) start_thread_locked();
    if (threads_.empty()) fail(Status::kAgain, "the system gives no thread");
    waiting_.emplace(0, Entry{std::move(errand), kFirstPauseNs});
    ++fresh_;
  }
  came_.notify_one();
}

void Errands::start_thread_locked() noexcept {
  if (threads_.size() >= kMostThreads) return;
  try {
    threads_.reserve(kMostThreads);
    threads_.emplace_back([this] { run(); });
  } catch (const std::exception&) {  // then those there are do it
  }
}

void Errands::run() noexcept {
  std::unique_lock lock(mutex_);
  for (;;) {
    const bool closing = closing_.load(std::memory_order_relaxed);
    if (waiting_.empty() && closing) return;
    const uint64_t now_ns = monotonic_now_ns();
    const uint64_t due_ns = waiting_.empty() ? UINT64_MAX : waiting_.begin()->first;
    if (due_ns > now_ns && !closing) {
      ++idle_;
      if (waiting_.empty())
        came_.wait(lock);
      else  // by the clock whose waits ThreadSanitizer knows
        came_.wait_until(lock, std::chrono::system_clock::now() + std::chrono::nanoseconds(due_ns - now_ns));
      --idle_;
      continue;
    }
    auto node = waiting_.extract(waiting_.begin());
    Entry& entry = node.mapped();
    if (node.key() == 0) --fresh_;
    lock.unlock();
    const bool over = entry.errand->step(closing) || closing;
    if (over) entry.errand.reset();
    lock.lock();
    if (over) continue;
    node.key() = monotonic_now_ns() + entry.pause_ns;
    entry.pause_ns = std::min(2 * entry.pause_ns, kLongestPauseNs);
    waiting_.insert(std::move(node));
  }
}

void Errands::finish() noexcept {
  std::vector<std::thread> threads;
  {
    const std::lock_guard lock(mutex_);
    closing_.store(true, std::memory_order_seq_cst);
    threads = std::exchange(threads_, {});
  }
  came_.notify_all();
  for (std::thread& thread : threads) thread.join();
}

}  // namespace towline
