#include "storage/object/joins.h"

#include <algorithm>

#include "storage/object/backend.h"
#include "storage/object/writer.h"

namespace towline::object {

void Joins::add(Job& job) {
  std::lock_guard lock(mutex_);
  const towline_plan* plan = job.prepared.plan;
  const auto [entry, fresh] = gathering_.try_emplace(plan);
  Gathered& gathered = entry->second;
  try {
    gathered.jobs.push_back(&job);
  } catch (...) {
    if (fresh) gathering_.erase(entry);
    throw;
  }
  gathered.bytes += job.end - job.begin;
  if (gathered.bytes < plan->bytes) return;
  try {
    start(gathered.jobs);
  } catch (...) {
    gathered.jobs.pop_back();
    gathered.bytes -= job.end - job.begin;
    if (fresh) gathering_.erase(entry);
    throw;
  }
  gathering_.erase(entry);
}

// Throws std::bad_alloc, and then has started nothing.
void Joins::start(const std::vector<Job*>& jobs) {
  Prepared& prepared = jobs.front()->prepared;
  const size_t count = backend_.clients_for(prepared.objects.size());
  std::vector<std::shared_ptr<Task>> tasks;
  for (size_t i = 0; i < count; ++i)
    tasks.push_back(std::make_shared<Writer>(backend_.next_client(), prepared, jobs, Share{i, count}));
  for (Job* part : jobs)
    for (size_t i = 1; i < count; ++i) part->add_task();
  size_t started = 0;
  try {
    for (Job* part : jobs) running_[part] = tasks;
    for (; started < count; ++started) tasks[started]->start_soon();
  } catch (...) {
    for (Job* part : jobs) {
      if (started != 0) part->failed(Status::kOutOfMemory, 0, part->begin, part->end);
      for (size_t left = count - std::max<size_t>(started, 1); left != 0; --left) part->task_over();
    }
    if (started != 0) return;  // the first ones end the jobs
    for (Job* part : jobs) running_.erase(part);
    throw;
  }
}

bool Joins::take_back(Job& job) noexcept {
  std::lock_guard lock(mutex_);
  const auto found = gathering_.find(job.prepared.plan);
  if (found == gathering_.end() || std::erase(found->second.jobs, &job) == 0) return false;
  found->second.bytes -= job.end - job.begin;
  if (found->second.jobs.empty()) gathering_.erase(found);
  return true;
}

void Joins::stop(const Job& job, Status status, bool now) {
  for (const auto& task : job.tasks) task->stop_soon(status, now);
  std::vector<std::shared_ptr<Task>> tasks;
  {
    std::lock_guard lock(mutex_);
    if (const auto found = running_.find(&job); found != running_.end()) tasks = found->second;
  }
  for (const auto& task : tasks) task->stop_soon(status, now);
}

void Joins::forget(const Job& job) noexcept {
  std::lock_guard lock(mutex_);
  running_.erase(&job);
}

}  // namespace towline::object
