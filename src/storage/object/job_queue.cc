#include "storage/object/job_queue.h"

#include <sched.h>

#include <algorithm>

#include "storage/object/backend.h"
#include "storage/object/reader.h"
#include "storage/object/writer.h"

namespace towline::object {

JobQueue::~JobQueue() = default;

Service& JobQueue::service() noexcept { return backend_.service(); }
Reaper& JobQueue::reaper() noexcept { return backend_.reaper(); }

void JobQueue::finished(Job& job) noexcept {
  Job* first = finished_.load(std::memory_order_relaxed);
  do {
    job.finished_next = first;
  } while (!finished_.compare_exchange_weak(first, &job, std::memory_order_seq_cst));
  backend_.host().wake(worker_);
}

int32_t JobQueue::submit(Prepared& prepared, const towline_submit_args& args) noexcept try {
  auto made = std::make_unique<Job>(prepared, args);
  Job& job = *made;
  active_.push_back(std::move(made));
  if (prepared.write()) {
    job.add_task();
    backend_.joins().add(job);
  } else {
    read(job);
  }
  return TOWLINE_IN_PROGRESS;
} catch (const std::bad_alloc&) {
  return TOWLINE_AGAIN;
}

// One task on each client, as far as there is work for it.
void JobQueue::read(Job& job) {
  const Prepared& prepared = job.prepared;
  const uint64_t bytes = job.end - job.begin;
  if (prepared.objects.size() == 1 && service().settings.checksum == Checksum::kCrc32c) {
    const Version version = prepared.objects[0]->version();
    const bool known = version.looked && !version.crc32c.empty() && bytes == version.bytes;
    job.verifies = bytes == prepared.plan->bytes && (known || !version.looked);
  }
  const uint64_t worth = std::max<uint64_t>(bytes / (2 * service().settings.part_bytes), 1);
  const uint64_t tasks = std::min<uint64_t>(worth, backend_.clients());
  for (uint64_t i = 0; i < tasks; ++i) {
    const uint64_t begin = job.begin + bytes / tasks * i;
    const uint64_t end = i + 1 == tasks ? job.end : job.begin + bytes / tasks * (i + 1);
    job.tasks.push_back(std::make_shared<Reader>(backend_.next_client(), job, begin, end));
    job.add_task();
  }
  for (const auto& task : job.tasks) task->start_soon();
}

void JobQueue::cancel(uint64_t cookie) noexcept {
  for (const auto& job : active_) {
    if (job->cookie != cookie) continue;
    if (backend_.joins().take_back(*job)) {
      job->failed(Status::kCancelled, 0, job->begin, job->end);
      job->task_over();
    } else {
      backend_.joins().stop(*job, Status::kCancelled, false);
    }
  }
}

uint32_t JobQueue::progress() noexcept {
  if (finished_.load(std::memory_order_relaxed) == nullptr) return 0;
  uint32_t done = 0;
  for (Job* job = finished_.exchange(nullptr, std::memory_order_acq_rel); job != nullptr; ++done) {
    Job* const next = job->finished_next;
    over(*job);
    job = next;
  }
  return done;
}

void JobQueue::over(Job& job) noexcept {
  const towline_part_result result = job.result();
  if (result.status == TOWLINE_OK && !job.message.empty())
    (void)job.connection->send(job.message.data(), job.message.size());
  backend_.joins().forget(job);
  const uint64_t cookie = job.cookie;
  std::erase_if(active_, [&](const auto& active) { return active.get() == &job; });
  backend_.host().complete(cookie, result);
}

void JobQueue::close(const Connection& connection) noexcept {
  const auto mine = [&](const auto& job) { return job->connection == &connection; };
  for (const auto& job : active_) {
    if (!mine(job)) continue;
    if (backend_.joins().take_back(*job)) {
      job->failed(Status::kPeerLost, 0, job->begin, job->end);
      job->task_over();
    } else {
      backend_.joins().stop(*job, Status::kPeerLost, true);
    }
  }
  while (std::any_of(active_.begin(), active_.end(), mine)) {
    if (progress() == 0) sched_yield();
  }
}

}  // namespace towline::object
