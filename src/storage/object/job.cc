#include "storage/object/job.h"

#include <algorithm>
#include <utility>

#include "storage/object/connection.h"
#include "storage/object/job_queue.h"

namespace towline::object {

Job::Job(Prepared& prepared_plan, const towline_submit_args& args, std::shared_ptr<Reading> what_is_read)
    : prepared(prepared_plan),
      begin(args.begin),
      end(args.end),
      cookie(args.cookie),
      urgent((args.flags & TOWLINE_SUBMIT_URGENT) != 0),
      message(static_cast<const uint8_t*>(args.message),
              static_cast<const uint8_t*>(args.message) + args.message_bytes),
      connection(reinterpret_cast<Connection*>(prepared_plan.connection)),
      reading(std::move(what_is_read)) {}

void Job::moved(uint64_t bytes) noexcept {
  std::lock_guard lock(mutex_);
  moved_ += bytes;
}

void Job::failed(Status status, long http_status, uint64_t first, uint64_t last) noexcept {
  std::lock_guard lock(mutex_);
  if (status_ != Status::kOk && failed_from_.load(std::memory_order_relaxed) <= first) return;
  status_ = status;
  http_status_ = http_status;
  failed_from_.store(first, std::memory_order_relaxed);
  failed_end_ = last;
}

void Job::task_over() noexcept {
  JobQueue& queue = *prepared.queue;
  if (tasks_left_.fetch_sub(1, std::memory_order_acq_rel) == 1) queue.finished(*this);
}

towline_part_result Job::result() noexcept {
  if (reading != nullptr && status_ == Status::kOk) {
    try {
      status_ = reading->verify();
      if (status_ != Status::kOk)
        prepared.queue->service().note_failure(prepared.objects[0]->name().text() +
                                               ": the checksum of what was read is not the object's");
    } catch (const std::bad_alloc&) {  // not compared, or compared and not told
      if (status_ == Status::kOk) status_ = Status::kOutOfMemory;
    }
    if (status_ != Status::kOk) {
      failed_from_ = begin;
      failed_end_ = end;
    }
  }
  auto result = plugin::sized<towline_part_result>();
  result.status = static_cast<int32_t>(status_);
  result.vendor_code = static_cast<int32_t>(http_status_);
  result.fences = TOWLINE_PART_FENCED_LOCAL | (remote_fence_ ? uint32_t{TOWLINE_PART_FENCED_REMOTE} : 0);
  result.bytes = std::min(moved_, end - begin);
  if (status_ != Status::kOk) {
    result.failed_begin = std::clamp(failed_from_.load(), begin, end);
    result.failed_end = std::clamp(failed_end_, begin, end);
  }
  return result;
}

// ---- tasks

bool Task::is_urgent() const noexcept {
  return std::any_of(jobs.begin(), jobs.end(), [](const Job* job) { return job->urgent; });
}

void Task::start_soon() {
  client.run([self = shared_from_this()] { self->start(); });
}

void Task::stop_soon(Status status, bool now) {
  client.run([self = shared_from_this(), status, now] {
    if (!self->over_) self->stop(status, now);
  });
}

void Task::over() {
  if (over_) return;
  over_ = true;
  client.remove_task();
  ending_ = shared_from_this();
  client.end_soon(*this);
}

void Task::end() noexcept {
  const std::shared_ptr<Task> self = std::move(ending_);
  const std::vector<Job*> told = std::exchange(jobs, {});
  for (Job* job : told) job->task_over();
}

}  // namespace towline::object
