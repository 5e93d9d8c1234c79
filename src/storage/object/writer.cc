#include "storage/object/writer.h"

#include "storage/object/job_queue.h"

namespace towline::object {

Writer::Writer(Client& task_client, Prepared& prepared, const std::vector<Job*>& parts, Share share)
    : Task(task_client), prepared_(prepared), share_(share) {
  jobs = parts;
}

Writer::~Writer() = default;

void Writer::start() {
  try {
    for (Stretch& stretch : stretches_of(*prepared_.plan)) {
      if (stretch.object % share_.count != share_.first) continue;
      Object& object = *prepared_.objects[stretch.object];
      writes_.push_back(std::make_unique<ObjectWrite>(*this, client, prepared_.queue->reaper(), object,
                                                      std::move(stretch)));
    }
  } catch (const plugin::Failure& failure) {
    writes_.clear();
    client.service().note_failure(failure.what());
    this->failed(failure.status(), 0, 0, prepared_.plan->bytes);
  } catch (const std::bad_alloc&) {
    writes_.clear();
    this->failed(Status::kOutOfMemory, 0, 0, prepared_.plan->bytes);
  }
  left_ = writes_.size();
  if (left_ == 0) return over();
  try {
    client.add_feeder(*this);
  } catch (const std::bad_alloc&) {
    stop(Status::kOutOfMemory, true);
  }
}

bool Writer::feed() {
  try {
    writes_[next_++]->start();
  } catch (const std::bad_alloc&) {
    stop(Status::kOutOfMemory, true);
    return false;
  }
  return next_ < writes_.size();
}

void Writer::stop(Status status, bool now) {
  client.remove_feeder(*this);
  for (const auto& write : writes_) write->stop(status, now);
  if (writes_.empty()) {
    failed(status, 0, 0, prepared_.plan->bytes);
    over();
  }
}

void Writer::failed(Status status, long http_status, uint64_t begin, uint64_t end) {
  for (Job* job : jobs) job->failed(status, http_status, begin, end);
}

// An object is there as a whole: each part has its share of it.
void Writer::moved(uint64_t bytes) {
  for (Job* job : jobs) job->moved(bytes);
}

void Writer::not_fenced() {
  for (Job* job : jobs) job->not_fenced_remote();
}

void Writer::one_over() {
  if (--left_ == 0) over();
}

}  // namespace towline::object
