#include "storage/object/job_queue.h"

#include <sched.h>

#include <algorithm>
#include <cstddef>
#include <new>
#include <utility>

#include "storage/object/backend.h"
#include "storage/object/collection.h"
#include "storage/object/reader.h"
#include "storage/object/writer.h"

namespace towline::object {

JobQueue::~JobQueue() = default;

Service& JobQueue::service() noexcept { return backend_.service(); }
Reaper& JobQueue::reaper() noexcept { return backend_.reaper(); }

void JobQueue::finished(Job& job) noexcept {
  (void)finished_.push(&job);
  backend_.host().wake(worker_);
}

int32_t JobQueue::submit(Prepared& prepared, const towline_submit_args& args) noexcept try {
  auto job = std::make_unique<Job>(prepared, args, prepared.write() ? nullptr : reading_of(prepared, args));
  active_.reserve(active_.size() + 1);
  // From its first task on the job can't be taken back: whatever throws does so before.
  if (prepared.write() && (args.flags & TOWLINE_SUBMIT_COLLECT) != 0) {
    collect(*job, *args.post);
  } else if (prepared.write()) {
    job->add_task();
    backend_.joins().add(*job);
  } else {
    add_readers(*job);
    start_readers(*job);
  }
  active_.push_back(std::move(job));
  return TOWLINE_IN_PROGRESS;
} catch (const std::exception&) {  // for want of memory
  return TOWLINE_AGAIN;
}

std::shared_ptr<Reading> JobQueue::reading_of(Prepared& prepared, const towline_submit_args& args) {
  const bool told = args.struct_size >= offsetof(towline_submit_args, post) + sizeof args.post;
  const towline_post* const post = told ? args.post : nullptr;
  const uint64_t bytes = post != nullptr ? post->bytes : args.end - args.begin;
  const Object* checked = nullptr;
  if (prepared.objects.size() == 1 && service().settings.checks_reads()) {
    const Version version = prepared.objects[0]->version();
    const bool known = version.looked && !version.crc32c.empty() && bytes == version.bytes;
    // An object that was not looked up returns its checksum if it is read by a single request; Google sends it with
    // every range.
    const bool by_ranges =
        service().settings.kind == ServerKind::kGcs && bytes == prepared.objects[0]->bytes();
    const bool may_tell =
        !version.looked && (by_ranges || (post == nullptr && bytes == prepared.plan->bytes));
    if (known || may_tell) checked = prepared.objects[0];
  }
  if (post == nullptr) return std::make_shared<Reading>(checked);
  if (prepared.reading == nullptr || prepared.post != post->number) {
    prepared.reading = backend_.readings().join(*post, checked);
    prepared.post = post->number;
  }
  return prepared.reading;
}

void JobQueue::collect(Job& job, const towline_post& post) {
  const auto collection = backend_.collections().join(post, [this] {
    return std::make_shared<Collection>(backend_.next_client(), backend_.reaper(),
                                        backend_.collections().part_bytes);
  });
  job.tasks.push_back(collection);
  job.add_task();
  collection->add(job);
}

// One task on each client, as far as there is work for it.
void JobQueue::add_readers(Job& job) {
  const uint64_t bytes = job.end - job.begin;
  const uint64_t worth = std::max<uint64_t>(bytes / (2 * service().settings.part_bytes),
                                            backend_.clients_for(job.prepared.objects.size()));
  const uint64_t tasks = std::min<uint64_t>(worth, backend_.clients());
  for (uint64_t i = 0; i < tasks; ++i) {
    const uint64_t begin = job.begin + bytes / tasks * i;
    const uint64_t end = i + 1 == tasks ? job.end : job.begin + bytes / tasks * (i + 1);
    job.tasks.push_back(std::make_shared<Reader>(backend_.next_client(), job, begin, end));
    job.add_task();
  }
}

void JobQueue::start_readers(Job& job) {
  job.tasks.front()->start_soon();
  for (size_t i = 1; i < job.tasks.size(); ++i) {
    try {
      job.tasks[i]->start_soon();
    } catch (const std::exception&) {  // the first one is under way
      job.failed(Status::kOutOfMemory, 0, job.begin, job.end);
      for (size_t left = job.tasks.size() - i; left != 0; --left) job.task_over();
      job.tasks.resize(i);
    }
  }
}

void JobQueue::cancel(uint64_t cookie) noexcept {
  for (const auto& job : active_) {
    if (job->cookie != cookie) continue;
    if (backend_.joins().take_back(*job)) {
      job->failed(Status::kCancelled, 0, job->begin, job->end);
      job->task_over();
    } else {
      stop(*job, Status::kCancelled, false);
    }
  }
}

void JobQueue::stop(Job& job, Status status, bool now) noexcept {
  try {
    backend_.joins().stop(job, status, now);
    job.to_stop = Status::kOk;
  } catch (const std::bad_alloc&) {
    job.to_stop = status;
    job.to_stop_now = now;
    some_to_stop_ = true;
    backend_.host().wake(worker_);
  }
}

void JobQueue::stop_again() noexcept {
  if (!std::exchange(some_to_stop_, false)) return;
  for (const auto& job : active_)
    if (job->to_stop != Status::kOk) stop(*job, job->to_stop, job->to_stop_now);
}

uint32_t JobQueue::progress() noexcept {
  stop_again();
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
      stop(*job, Status::kPeerLost, true);
    }
  }
  while (std::any_of(active_.begin(), active_.end(), mine)) {
    if (progress() == 0) sched_yield();
  }
}

}  // namespace towline::object
