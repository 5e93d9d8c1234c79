#include "storing/calls/pool.h"

#include <sched.h>

#include <algorithm>
#include <utility>

namespace towline::calls {

Pool::~Pool() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Pool::start() {
  const std::lock_guard lock(mutex_);
  while (callers_.size() < settings_.threads) {
    callers_.push_back(library_.make_caller());
    Caller& caller = *callers_.back();
    try {
      std::vector<Piece> pieces;  // here, since a thread can refuse nobody
      pieces.reserve(2 * size_t{settings_.batch} + 1);
      threads_.emplace_back(
          [this, &caller, pieces = std::move(pieces)]() mutable noexcept { run(caller, pieces); });
    } catch (...) {
      callers_.pop_back();
      throw;
    }
  }
}

void Pool::add(Job& job) {
  const uint64_t turn = settings_.turn_bytes(job.end - job.begin);
  const uint64_t worth = (job.end - job.begin + turn - 1) / turn;
  const auto shares = static_cast<size_t>(std::clamp<uint64_t>(worth, 1, settings_.threads));
  {
    const std::lock_guard lock(mutex_);
    waiting_.insert(waiting_.end(), shares, &job);
    if (job.urgent) urgent_waiting_.fetch_add(static_cast<uint32_t>(shares), std::memory_order_relaxed);
    for (size_t i = 0; i < shares; ++i) job.add_share();
  }
  shares == 1 ? changed_.notify_one() : changed_.notify_all();
}

void Pool::run(Caller& caller, std::vector<Piece>& pieces) noexcept {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return ends_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    const uint32_t urgent = urgent_waiting_.load(std::memory_order_relaxed);
    Job& job = *take(turns_.take(urgent != 0, urgent != waiting_.size()));
    lock.unlock();
    work(job, caller, pieces);
    lock.lock();
  }
}

// Under the lock. Null: none is free.
Job* Pool::take(bool urgent) noexcept {
  const auto found = std::find_if(waiting_.begin(), waiting_.end(),
                                  [urgent](const Job* job) { return job->urgent == urgent; });
  if (found == waiting_.end()) return nullptr;
  Job* const job = *found;
  waiting_.erase(found);
  if (urgent) urgent_waiting_.fetch_sub(1, std::memory_order_relaxed);
  return job;
}

void Pool::work(Job& job, Caller& caller, std::vector<Piece>& pieces) noexcept {
  while (job.work(caller, settings_, pieces))
    if (!job.urgent) help_urgent(caller, pieces);
  if (!job.give_share()) return;
  if (job.prepared.write && job.prepared.syncs) job.sync_files();
  job.prepared.queue->finished(job);
}

// Between two batches of another job, so that what is urgent doesn't wait for the whole of it.
void Pool::help_urgent(Caller& caller, std::vector<Piece>& pieces) noexcept {
  if (urgent_waiting_.load(std::memory_order_relaxed) == 0) return;
  Job* job = nullptr;
  {
    const std::lock_guard lock(mutex_);
    job = take(true);
  }
  if (job != nullptr) work(*job, caller, pieces);
}

// ---- a worker's jobs

void JobQueue::finished(Job& job) noexcept {
  (void)finished_.push(&job);
  host_.wake(worker_);
}

int32_t JobQueue::submit(Prepared& prepared, const towline_submit_args& args,
                         storing::OwnConnection* connection) noexcept try {
  active_.reserve(active_.size() + 1);
  auto job = std::make_unique<Job>(prepared, args, connection);
  pool_.add(*job);  // from here on it can't be taken back
  active_.push_back(std::move(job));
  return TOWLINE_IN_PROGRESS;
} catch (const std::exception&) {  // for want of memory
  return TOWLINE_AGAIN;
}

void JobQueue::cancel(uint64_t cookie) noexcept {
  for (const auto& job : active_) {
    if (job->cookie == cookie) job->stop(Status::kCancelled);
  }
}

uint32_t JobQueue::progress() noexcept {
  uint32_t done = 0;
  for (Job* job = finished_.pop_all_in_order(); job != nullptr; ++done) {
    Job* const next = job->finished_next;
    over(*job);
    job = next;
  }
  return done;
}

void JobQueue::over(Job& job) noexcept {
  towline_part_result result = job.result();
  job.connection->send_after(job.message, result);
  const uint64_t cookie = job.cookie;
  std::erase_if(active_, [&](const auto& active) { return active.get() == &job; });
  host_.complete(cookie, result);
}

void JobQueue::close(const storing::OwnConnection* connection) noexcept {
  const auto mine = [&](const auto& job) { return job->connection == connection; };
  for (const auto& job : active_) {
    if (mine(job)) job->stop(Status::kPeerLost);
  }
  while (std::any_of(active_.begin(), active_.end(), mine)) {
    if (progress() == 0) sched_yield();
  }
}

}  // namespace towline::calls
