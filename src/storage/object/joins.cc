#include "storage/object/joins.h"

#include <algorithm>

#include "storage/object/backend.h"
#include "storage/object/writer.h"

namespace towline::object {

void Joins::add(Job& job) {
  std::lock_guard lock(mutex_);
  const towline_plan* plan = job.prepared.plan;
  Gathered& gathered = gathering_[plan];
  gathered.jobs.push_back(&job);
  gathered.bytes += job.end - job.begin;
  if (gathered.bytes < plan->bytes) return;
  const std::vector<Job*> jobs = std::move(gathered.jobs);
  gathering_.erase(plan);
  const auto task = std::make_shared<Writer>(backend_.next_client(), job.prepared, jobs);
  for (Job* part : jobs) running_[part] = task;
  task->start_soon();
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
  std::shared_ptr<Task> task;
  {
    std::lock_guard lock(mutex_);
    if (const auto found = running_.find(&job); found != running_.end()) task = found->second;
  }
  if (task != nullptr) task->stop_soon(status, now);
}

void Joins::forget(const Job& job) noexcept {
  std::lock_guard lock(mutex_);
  running_.erase(&job);
}

}  // namespace towline::object
