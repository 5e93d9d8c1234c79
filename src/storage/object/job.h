// One submitted part on its way, and the tasks that do it.
//
// A task belongs to one client and runs on its thread alone; a READ has one on each client it is spread over,
// a WRITE has one for each share of the plan's objects, however many parts the plan was split into. A job is over when its last
// task is; tasks report from the client's loop, when nothing of them is on the stack any more.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "storage/object/client.h"
#include "storage/object/object.h"
#include "storage/object/reading.h"
#include "towline/plugin/backend.hpp"

namespace towline::object {

class Backend;
class Connection;
class JobQueue;
class Task;

// A plan prepared on a connection.
struct Prepared : plugin::PreparedBase {
  JobQueue* queue = nullptr;
  uint32_t op = 0;
  std::vector<Object*> objects;      // by the plan's number of the remote region
  std::shared_ptr<Reading> reading;  // of the last post that took several submits
  uint64_t post = 0;                 // its number

  [[nodiscard]] bool write() const noexcept { return op != 0; }
};

class Job {
 public:
  // `reading`: null for a WRITE.
  Job(Prepared& prepared_plan, const towline_submit_args& args, std::shared_ptr<Reading> reading);
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  // ---- any thread
  void moved(uint64_t bytes) noexcept;
  // The failure that comes first in the plan is kept.
  void failed(Status status, long http_status, uint64_t begin, uint64_t end) noexcept;
  // Nothing from there on need be begun; UINT64_MAX while all is well.
  [[nodiscard]] uint64_t failed_from() const noexcept { return failed_from_.load(std::memory_order_relaxed); }
  void not_fenced_remote() noexcept { remote_fence_.store(false, std::memory_order_relaxed); }
  void add_task() noexcept { tasks_left_.fetch_add(1, std::memory_order_relaxed); }
  // The last one reports the job to its queue, after which it may be gone.
  void task_over() noexcept;

  // ---- the worker
  [[nodiscard]] towline_part_result result() noexcept;

  Prepared& prepared;
  const uint64_t begin;
  const uint64_t end;
  const uint64_t cookie;
  const bool urgent;  // goes before jobs that are not
  const std::vector<uint8_t> message;
  Connection* const connection;
  const std::shared_ptr<Reading> reading;
  std::vector<std::shared_ptr<Task>> tasks;
  Job* finished_next = nullptr;
  // Not kOk: there was no memory to stop it so, which is tried again. Of its worker.
  Status to_stop = Status::kOk;
  bool to_stop_now = false;

 private:
  std::atomic<uint32_t> tasks_left_{0};
  std::atomic<uint64_t> failed_from_{UINT64_MAX};
  std::atomic<bool> remote_fence_{true};
  std::mutex mutex_;  // of all below
  uint64_t moved_ = 0;
  Status status_ = Status::kOk;
  long http_status_ = 0;
  uint64_t failed_end_ = 0;
};

class Task : public std::enable_shared_from_this<Task>, private Ending {
 public:
  explicit Task(Client& task_client) : client(task_client) { client.add_task(); }
  Task(const Task&) = delete;
  Task& operator=(const Task&) = delete;
  virtual ~Task() {
    if (!over_) client.remove_task();
  }

  // Any thread: what follows happens on the client's thread.
  void start_soon();
  // `now`: also what the server has got all of is not waited for.
  void stop_soon(Status status, bool now);

  Client& client;
  std::vector<Job*> jobs;

 protected:
  [[nodiscard]] bool is_urgent() const noexcept;  // one of the jobs is

  virtual void start() = 0;
  virtual void stop(Status status, bool now) = 0;
  // Once, as the last thing that the task does.
  void over();

 private:
  void end() noexcept override;

  bool over_ = false;
  std::shared_ptr<Task> ending_;  // itself, until its jobs are told
};

}  // namespace towline::object
