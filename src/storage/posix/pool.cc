#include "storage/posix/pool.h"

#include <algorithm>

#include "base/clock.h"
#include "base/os/futex.h"
#include "base/os/processor.h"
#include "storage/posix/job_queue.h"

namespace towline::posix {

Pool::~Pool() {
  stop_.store(true, std::memory_order_seq_cst);
  word_.fetch_add(1, std::memory_order_seq_cst);
  futex_wake_all(word_);
  for (std::thread& thread : threads_) thread.join();
}

// By another thread, which holds the file's lock while it writes.
bool Pool::is_written(const Job& job) const noexcept {
  return job.write() && std::find(handed_files_.begin(), handed_files_.end(), job.prepared().files[0]) !=
                            handed_files_.end();
}

bool Pool::may_begin(const Job& job) const noexcept {
  return handed_files_.size() < most_handed_ && !is_written(job);
}

void Pool::count_waiting() noexcept {
  const uint64_t room = most_handed_ - std::min<uint64_t>(handed_files_.size(), most_handed_);
  const auto ready = static_cast<uint64_t>(
      std::count_if(handed_.begin(), handed_.end(), [this](const Job* job) { return may_begin(*job); }));
  const auto urgent = [](const Job* job) { return job->urgent; };
  urgent_.store(static_cast<uint32_t>(std::count_if(asked_.begin(), asked_.end(), urgent) +
                                      std::count_if(handed_.begin(), handed_.end(), urgent)),
                std::memory_order_relaxed);
  waiting_.store(static_cast<uint32_t>(asked_.size() + std::min(ready, room)), std::memory_order_seq_cst);
}

// As many as there is work for, if they can be had.
void Pool::start_threads() noexcept try {
  threads_.reserve(most_threads_);
  while (threads_.size() < most_threads_ &&
         idle_.load(std::memory_order_relaxed) < waiting_.load(std::memory_order_relaxed)) {
    idle_.fetch_add(1, std::memory_order_relaxed);
    try {
      threads_.emplace_back([this] { run(); });
    } catch (...) {
      idle_.fetch_sub(1, std::memory_order_relaxed);
      throw;
    }
    started_.fetch_add(1, std::memory_order_relaxed);
  }
} catch (const std::exception&) {
}

void Pool::wake(uint32_t threads) noexcept {
  if (sleeping_.load(std::memory_order_seq_cst) == 0) return;
  word_.fetch_add(1, std::memory_order_seq_cst);
  futex_wake(word_, threads);
}

bool Pool::ask(Job& job, uint32_t helpers) noexcept {
  uint32_t asked = 0;
  job.processor = current_processor();
  {
    std::lock_guard lock(mutex_);
    try {
      for (; asked < helpers; ++asked) asked_.push_back(&job);
    } catch (const std::exception&) {
    }
    for (uint32_t i = 0; i < asked; ++i) job.add_share();
    count_waiting();
    start_threads();
    if (threads_.empty()) {
      std::erase(asked_, &job);
      for (; asked != 0; --asked) (void)job.give_share();
      count_waiting();
    }
  }
  if (asked != 0) wake(asked);
  return asked != 0;
}

Pool::Handed Pool::hand_over(Job& job) noexcept {
  bool begun = false;
  job.processor = current_processor();
  {
    std::lock_guard lock(mutex_);
    try {
      handed_files_.reserve(2 * size_t{most_handed_});  // each thread may have an urgent one beside
      handed_.push_back(&job);
    } catch (const std::exception&) {
      return Handed::kNot;
    }
    job.add_share();
    const uint32_t before = waiting_.load(std::memory_order_relaxed);
    count_waiting();
    begun = waiting_.load(std::memory_order_relaxed) > before;
    start_threads();
    if (threads_.empty()) {
      handed_.pop_back();
      (void)job.give_share();
      count_waiting();
      return Handed::kNot;
    }
  }
  if (begun) wake(1);
  return begun ? Handed::kBegun : Handed::kLater;
}

uint32_t Pool::take_back(Job& job) noexcept {
  std::lock_guard lock(mutex_);
  const auto count = static_cast<uint32_t>(std::erase(asked_, &job) + std::erase(handed_, &job));
  if (count != 0) count_waiting();
  return count;
}

// `beside`: a thread that has a job in hand asks, whose place among the handed over it uses.
Pool::Taken Pool::first(bool urgent, bool beside) const noexcept {
  const auto asked =
      std::find_if(asked_.begin(), asked_.end(), [urgent](const Job* job) { return job->urgent == urgent; });
  if (asked != asked_.end()) return {*asked, false};
  const auto handed = std::find_if(handed_.begin(), handed_.end(), [&](const Job* job) {
    return job->urgent == urgent && (beside ? !is_written(*job) : may_begin(*job));
  });
  return handed != handed_.end() ? Taken{*handed, true} : Taken{};
}

void Pool::take(const Taken& taken) noexcept {
  std::deque<Job*>& from = taken.handed ? handed_ : asked_;
  from.erase(std::find(from.begin(), from.end(), taken.job));
  if (taken.handed) handed_files_.push_back(taken.job->write() ? taken.job->prepared().files[0] : nullptr);
  count_waiting();
}

Pool::Taken Pool::next() noexcept {
  if (waiting_.load(std::memory_order_seq_cst) == 0) return {};
  std::lock_guard lock(mutex_);
  const Taken urgent = first(true, false);
  const Taken other = first(false, false);
  const Taken taken = turns_.take(urgent.job != nullptr, other.job != nullptr) ? urgent : other;
  if (taken.job == nullptr) return {};
  take(taken);
  idle_.fetch_sub(1, std::memory_order_relaxed);
  return taken;
}

// Between two slices of another job, so that what is urgent doesn't wait for the whole of it.
void Pool::help_urgent() noexcept {
  if (urgent_.load(std::memory_order_relaxed) == 0) return;
  Taken taken;
  {
    std::lock_guard lock(mutex_);
    taken = first(true, true);
    if (taken.job == nullptr) return;
    take(taken);
  }
  work(taken, true);
}

void Pool::work(const Taken& taken, bool beside) noexcept {
  Job& job = *taken.job;
  while (job.help(buffers_))
    if (!job.urgent) help_urgent();
  if (taken.handed) handed_ended(job);
  if (!beside) idle_.fetch_add(1, std::memory_order_relaxed);
  JobQueue& queue = *job.prepared().queue;
  if (job.give_share()) queue.finished(job);
}

void Pool::handed_ended(const Job& job) noexcept {
  std::lock_guard lock(mutex_);
  const File* const file = job.write() ? job.prepared().files[0] : nullptr;
  handed_files_.erase(std::find(handed_files_.begin(), handed_files_.end(), file));
  count_waiting();
}

void Pool::run() noexcept {
  uint64_t spin_until_ns = Deadline::after(monotonic_now_ns(), spin_ns_).ns();
  while (!stop_.load(std::memory_order_relaxed)) {
    if (const Taken taken = next(); taken.job != nullptr) {
      leave_processor(taken.job->processor);
      work(taken, false);
      spin_until_ns = Deadline::after(monotonic_now_ns(), spin_ns_).ns();
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
    spin_until_ns = Deadline::after(monotonic_now_ns(), spin_ns_).ns();
  }
}

}  // namespace towline::posix
