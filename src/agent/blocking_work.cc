#include "agent/blocking_work.h"

#include <exception>
#include <utility>

#include "agent/own_thread.h"
#include "agent/worker.h"

namespace towline {

Status BlockingWork::add(Worker& then, Function function, void* argument) noexcept {
  if (!in_real_time_) {
    function(argument);
    return Status::kOk;
  }
  try {
    const std::lock_guard lock(mutex_);
    if (finishing_) return Status::kClosed;
    if (waiting_.size() >= kMostWaiting) return Status::kAgain;
    if (idle_ <= waiting_.size() && !start_thread_locked() && threads_.empty()) return Status::kAgain;
    waiting_.push_back({&then, function, argument});
  } catch (const std::exception&) {
    return Status::kAgain;
  }
  came_.notify_one();
  return Status::kOk;
}

// False: there are enough, or the system gives no more.
bool BlockingWork::start_thread_locked() noexcept {
  if (threads_.size() >= kMostThreads) return false;
  try {
    threads_.reserve(kMostThreads);
    threads_.emplace_back([this] { run(); });
    ++idle_;
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

void BlockingWork::run() noexcept {
  const OwnThread mark(agent_);
  std::unique_lock lock(mutex_);
  for (;;) {
    came_.wait(lock, [this] { return finishing_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    const Entry entry = waiting_.front();
    waiting_.pop_front();
    --idle_;
    lock.unlock();
    entry.function(entry.argument);
    entry.then->wake();
    lock.lock();
    ++idle_;
  }
}

void BlockingWork::finish() noexcept {
  std::vector<std::thread> threads;
  {
    const std::lock_guard lock(mutex_);
    finishing_ = true;
    threads = std::exchange(threads_, {});
  }
  came_.notify_all();
  for (std::thread& thread : threads) thread.join();
}

}  // namespace towline
