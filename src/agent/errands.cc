#include "agent/errands.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

#include "agent/own_thread.h"
#include "base/clock.h"
#include "base/error.h"

namespace towline {

namespace {
constexpr uint64_t kFirstPauseNs = 20 * kMicrosecondNs;
constexpr uint64_t kLongestPauseNs = 2 * kMillisecondNs;
constexpr uint64_t kIdleNs = 10 * kSecondNs;
}  // namespace

void Errands::add(std::unique_ptr<Errand> errand) {
  if (!in_real_time_) {
    while (!errand->step(false)) {
    }
    return;
  }
  ErrandThreads& threads = errand->blocks() ? calls_ : quick_;
  threads.add(std::move(errand));
}

void Errands::finish() noexcept {
  closing_.store(true, std::memory_order_seq_cst);
  calls_.close();
  quick_.close();
  calls_.finish();
  quick_.finish();
}

void ErrandThreads::add(std::unique_ptr<Errand> errand) {
  std::list<std::thread> ended;
  {
    const std::lock_guard lock(mutex_);
    if (closing_) fail(Status::kClosed, "the agent has been closed");
    if (waiting_.size() >= Errands::kMostWaiting)
      fail(Status::kAgain, "{} calls wait for their turn already", waiting_.size());
    if (idle_ <= fresh_) start_thread_locked();
    if (threads_.empty()) fail(Status::kAgain, "the system gives no thread");
    waiting_.emplace(0, Entry{std::move(errand), kFirstPauseNs});
    ++fresh_;
    ended.swap(ended_);
  }
  came_.notify_one();
  for (std::thread& thread : ended) thread.join();
}

std::size_t ErrandThreads::threads() const {
  const std::lock_guard lock(mutex_);
  return threads_.size();
}

void ErrandThreads::start_thread_locked() noexcept {
  if (threads_.size() >= most_threads_) return;
  try {
    threads_.emplace_back([this] { run(); });
  } catch (const std::exception&) {  // then those there are do it
  }
}

bool ErrandThreads::sleep(std::unique_lock<std::mutex>& lock, uint64_t due_ns, uint64_t now_ns) noexcept {
  using std::chrono::nanoseconds;
  ++idle_;
  bool came = true;
  if (!waiting_.empty())
    came_.wait_for(lock, nanoseconds(due_ns - now_ns));
  else if (!end_when_idle_)
    came_.wait(lock);
  else
    came = came_.wait_for(lock, nanoseconds(kIdleNs)) == std::cv_status::no_timeout;
  --idle_;
  if (came || closing_ || !waiting_.empty()) return true;
  ended_.splice(ended_.end(), threads_,
                std::ranges::find(threads_, std::this_thread::get_id(), &std::thread::get_id));
  return false;
}

void ErrandThreads::run() noexcept {
  const OwnThread mark(agent_);
  std::unique_lock lock(mutex_);
  for (;;) {
    if (waiting_.empty() && closing_) return;
    const bool closing = closing_;
    const uint64_t now_ns = monotonic_now_ns();
    const uint64_t due_ns = waiting_.empty() ? UINT64_MAX : waiting_.begin()->first;
    if (due_ns > now_ns && !closing) {
      if (!sleep(lock, due_ns, now_ns)) return;
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

void ErrandThreads::close() noexcept {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  came_.notify_all();
}

void ErrandThreads::finish() noexcept {
  close();
  std::list<std::thread> threads;
  {
    const std::lock_guard lock(mutex_);
    threads.swap(threads_);
    threads.splice(threads.end(), ended_);
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace towline
