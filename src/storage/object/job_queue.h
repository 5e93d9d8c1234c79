// A worker's jobs: taken on, hurried, and given back to the core when their tasks are over.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/sync/treiber_stack.h"
#include "storage/object/job.h"
#include "towline/plugin/backend.hpp"

namespace towline::object {

class Backend;
class Reaper;

class JobQueue {
 public:
  JobQueue(Backend& backend, uint32_t worker) : backend_(backend), worker_(worker) {}
  JobQueue(const JobQueue&) = delete;
  JobQueue& operator=(const JobQueue&) = delete;
  ~JobQueue();

  // A job's last task is over. Any thread.
  void finished(Job& job) noexcept;
  [[nodiscard]] Service& service() noexcept;
  [[nodiscard]] Reaper& reaper() noexcept;

  // ---- the worker, under its lock
  [[nodiscard]] int32_t submit(Prepared& prepared, const towline_submit_args& args) noexcept;
  void cancel(uint64_t cookie) noexcept;
  uint32_t progress() noexcept;
  [[nodiscard]] bool has_work() const noexcept { return !finished_.looks_empty() || some_to_stop_; }
  // Ends all of a connection's jobs; waits for that.
  void close(const Connection& connection) noexcept;
  [[nodiscard]] size_t jobs() const noexcept { return active_.size(); }

 private:
  // The reading state of the submit's post, shared by all submits of the post.
  [[nodiscard]] std::shared_ptr<Reading> reading_of(Prepared& prepared, const towline_submit_args& args);
  // As one of its post's chunks.
  void collect(Job& job, const towline_post& post);
  void add_readers(Job& job);
  // Throws std::bad_alloc, and then has started none.
  void start_readers(Job& job);
  void over(Job& job) noexcept;
  // `now`: as Task::stop_soon(). Without memory progress() tries again.
  void stop(Job& job, Status status, bool now) noexcept;
  void stop_again() noexcept;

  Backend& backend_;
  const uint32_t worker_;
  std::vector<std::unique_ptr<Job>> active_;
  bool some_to_stop_ = false;
  TreiberStack<Job, &Job::finished_next> finished_;
};

}  // namespace towline::object
