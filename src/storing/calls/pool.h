// The threads of one backend, each with a caller of the library, and the workers' queues of jobs. Urgent jobs go first,
// also between two batches of another job; one turn in eight is left to the others.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/sync/treiber_stack.h"
#include "base/sync/urgent_first.h"
#include "storing/calls/job.h"

namespace towline::calls {

class Pool {
 public:
  Pool(Library& library, const PoolSettings& settings) : library_(library), settings_(settings) {}
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  // Makes callers and threads, once. Throws plugin::Failure, and then may be called again.
  void start();
  // Has threads work on the job, as many as it has work for. Throws std::bad_alloc, and then none does.
  void add(Job& job);
  [[nodiscard]] const PoolSettings& settings() const noexcept { return settings_; }

 private:
  void run(Caller& caller, std::vector<Piece>& pieces) noexcept;
  void work(Job& job, Caller& caller, std::vector<Piece>& pieces) noexcept;
  void help_urgent(Caller& caller, std::vector<Piece>& pieces) noexcept;
  [[nodiscard]] Job* take(bool urgent) noexcept;

  Library& library_;
  const PoolSettings settings_;
  std::mutex mutex_;  // of all below
  std::condition_variable changed_;
  std::deque<Job*> waiting_;
  std::atomic<uint32_t> urgent_waiting_{0};  // of these
  UrgentFirst turns_;
  bool ends_ = false;
  std::vector<std::unique_ptr<Caller>> callers_;
  std::vector<std::thread> threads_;
};

// A worker's jobs.
class JobQueue {
 public:
  JobQueue(const plugin::Host& host, uint32_t worker, Pool& pool)
      : host_(host), worker_(worker), pool_(pool) {}
  JobQueue(const JobQueue&) = delete;
  JobQueue& operator=(const JobQueue&) = delete;

  // A job's last share was given back. Any thread.
  void finished(Job& job) noexcept;

  // ---- the worker, under its lock
  [[nodiscard]] int32_t submit(Prepared& prepared, const towline_submit_args& args,
                               storing::OwnConnection* connection) noexcept;
  void cancel(uint64_t cookie) noexcept;
  uint32_t progress() noexcept;
  [[nodiscard]] bool has_work() const noexcept { return !finished_.looks_empty(); }
  // Ends all of a connection's jobs; waits for that.
  void close(const storing::OwnConnection* connection) noexcept;
  [[nodiscard]] size_t jobs() const noexcept { return active_.size(); }

 private:
  void over(Job& job) noexcept;

  const plugin::Host& host_;
  const uint32_t worker_;
  Pool& pool_;
  std::vector<std::unique_ptr<Job>> active_;
  TreiberStack<Job, &Job::finished_next> finished_;
};

}  // namespace towline::calls
