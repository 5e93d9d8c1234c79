#include "storage/object/collection.h"

#include <algorithm>
#include <iterator>

#include "storage/object/reaper.h"
#include "towline/plugin/cursor.hpp"

namespace towline::object {

Collection::Collection(Client& task_client, Reaper& reaper, std::atomic<uint64_t>& part_bytes)
    : Task(task_client), reaper_(reaper), memory_(part_bytes, task_client.settings().collect_bytes) {}

Collection::~Collection() = default;

// ---- jobs

void Collection::add(Job& job) {
  client.run([self = std::static_pointer_cast<Collection>(shared_from_this()), &job] { self->take(job); });
}

void Collection::take(Job& job) noexcept {
  if (ending_ || status_ != Status::kOk) {  // an object has failed, and the others are told in the next step
    job.failed(status_ != Status::kOk ? status_ : Status::kInternal, http_status_, job.begin, job.end);
    return job.task_over();
  }
  try {
    jobs.push_back(&job);
  } catch (const std::bad_alloc&) {
    job.failed(Status::kOutOfMemory, 0, job.begin, job.end);
    return job.task_over();
  }
  step();
}

// The first chunk's plan is that of all.
void Collection::plan_writes(const Job& job) {
  stretches_ = stretches_in_order(*job.prepared.plan);
  bytes_ = job.prepared.plan->bytes;
}

bool Collection::objects_are_there(const Job& job) const noexcept {
  return std::none_of(writes_.begin(), writes_.end(), [&](const auto& write) {
    const uint64_t end = write->stretch().plan_end;
    return end > job.begin && end <= job.end;
  });
}

void Collection::end_jobs() {
  const auto last = std::max_element(
      jobs.begin(), jobs.end(), [](const Job* one, const Job* other) { return one->begin < other->begin; });
  const Job* const kept = position_ < bytes_ && last != jobs.end() ? *last : nullptr;
  std::vector<Job*> ended;
  const auto may_end = [&](const Job* job) {
    return job != kept && job->end <= position_ && objects_are_there(*job);
  };
  std::copy_if(jobs.begin(), jobs.end(), std::back_inserter(ended), may_end);
  std::erase_if(jobs, may_end);
  for (Job* job : ended) {
    job->moved(job->end - job->begin);
    job->task_over();
  }
  if (!jobs.empty() || position_ < bytes_) return;
  ending_ = true;
  over();
}

// ---- steps: from the client's loop, when nothing of a write is on the stack

void Collection::step_soon() noexcept {
  if (next_step_.kept != nullptr) return;
  next_step_.kept = shared_from_this();
  client.end_soon(next_step_);
}

void Collection::NextStep::end() noexcept {
  const std::shared_ptr<Task> alive = std::move(kept);
  collection.step();
}

void Collection::step() noexcept {
  if (ending_ && jobs.empty()) return;
  std::erase_if(writes_, [](const auto& write) { return write->is_over(); });
  try {
    if (!ending_ && status_ == Status::kOk) copy_chunks();
    if (status_ == Status::kOk) return end_jobs();
  } catch (const plugin::Failure& failure) {
    fail(failure.status(), failure.what());
  } catch (const std::bad_alloc&) {
    fail(Status::kOutOfMemory, "no memory for what is to be written");
  }
  if (!std::exchange(ending_, true)) {
    for (const auto& write : writes_) write->stop(Status::kCancelled, false);
  }
  if (std::all_of(writes_.begin(), writes_.end(), [](const auto& write) { return write->is_over(); })) over();
}

void Collection::stop(Status status, bool now) {
  if (position_ < bytes_ || stretches_.empty()) failed(status, 0, 0, UINT64_MAX);
  for (const auto& write : writes_) write->stop(status, now);
  step_soon();
}

void Collection::fail(Status status, const char* text) {
  client.service().note_failure(text);
  failed(status, 0, 0, UINT64_MAX);
}

// A job's range of the object that failed, or all of it, since the job's status is the object's.
void Collection::failed(Status status, long http_status, uint64_t begin, uint64_t end) {
  if (status_ != Status::kOk) return;
  status_ = status;
  http_status_ = http_status;
  for (Job* job : jobs) {
    const uint64_t first = std::max(job->begin, begin);
    const uint64_t last = std::min(job->end, end);
    if (first < last)
      job->failed(status, http_status, first, last);
    else
      job->failed(status, http_status, job->begin, job->end);
  }
}

void Collection::not_fenced() {
  for (Job* job : jobs) job->not_fenced_remote();
}

// ---- copying

void Collection::copy_chunks() {
  for (;;) {
    const auto next = std::find_if(jobs.begin(), jobs.end(), [&](const Job* job) {
      return job->begin <= position_ && position_ < job->end;
    });
    if (next == jobs.end()) return;
    if (stretches_.empty()) plan_writes(**next);
    if (!copy(**next)) return;
  }
}

ObjectWrite& Collection::writing(const Job& job) {
  if (next_stretch_ < stretches_.size() && stretches_[next_stretch_].plan_begin == position_) {
    Stretch& stretch = stretches_[next_stretch_];
    Object& object = *job.prepared.objects[stretch.object];
    writes_.push_back(std::make_unique<ObjectWrite>(*this, client, reaper_, object, stretch, &memory_));
    ++next_stretch_;
    writes_.back()->start();
  }
  return *writes_.back();
}

bool Collection::copy(const Job& job) {
  plugin::Cursor cursor(*job.prepared.plan, position_, job.end);
  towline_segment segments[64];
  while (const size_t count = cursor.next(segments, std::size(segments), job.end - position_)) {
    for (const towline_segment& segment : std::span(segments, count)) {
      const auto* data = reinterpret_cast<const std::byte*>(segment.local);
      for (uint64_t done = 0; done < segment.length;) {
        const uint64_t taken = writing(job).collect(data + done, segment.length - done);
        if (taken == 0) return false;
        done += taken;
        position_ += taken;
      }
    }
  }
  return true;
}

}  // namespace towline::object
