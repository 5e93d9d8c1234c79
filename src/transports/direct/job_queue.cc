#include "transports/direct/job_queue.h"

#include <algorithm>
#include <new>
#include <utility>

#include "base/sync/wake_path.h"

namespace towline::direct {

namespace {

constexpr size_t kMaxQueued = 1024;

}  // namespace

// `moved`: what submit has done already; the part then only has its message, or its failure, left.
int32_t JobQueue::enqueue(Prepared& prepared, const towline_submit_args& args, const Moved* moved) noexcept
    try {
  if (queued_ >= kMaxQueued) return TOWLINE_AGAIN;
  if (free_ == nullptr) {
    jobs_.push_back(std::make_unique<Job>());
    free_ = jobs_.back().get();
  }
  Job* const job = free_;
  const auto* message = static_cast<const uint8_t*>(args.message);
  job->message.assign(message, message + args.message_bytes);
  free_ = job->next;
  job->prepared = &prepared;
  job->cookie = args.cookie;
  job->begin = args.begin;
  job->end = args.end;
  job->copy.reset();
  job->cursor.reset();
  job->urgent = (args.flags & TOWLINE_SUBMIT_URGENT) != 0;
  job->ended = moved != nullptr;
  job->moved = moved != nullptr ? *moved : Moved{args.begin};
  if (moved == nullptr) mover_.begin(*job);
  queue_of(*job).append(job);
  ++queued_;
  host_.wake(worker_);
  return TOWLINE_IN_PROGRESS;
} catch (const std::bad_alloc&) {
  return static_cast<int32_t>(Status::kOutOfMemory);
}

// True for the first job for which `visit` is true.
template <class Visit>
bool JobQueue::any(Visit&& visit) const noexcept {
  for (const Fifo* const queue : {&urgent_, &bulk_})
    for (Job* job = queue->head; job != nullptr; job = job->next)
      if (visit(*job)) return true;
  return false;
}

bool JobQueue::cancel(uint64_t cookie) noexcept {
  return any([cookie](Job& job) {
    if (job.cookie != cookie) return false;
    if (job.moved.status == Status::kOk) job.moved.status = Status::kCancelled;
    job.ended = true;
    return true;
  });
}

TOWLINE_WAKE_PATH uint32_t JobQueue::progress() noexcept {
  if (queued_ == 0) return 0;
  Job* const job = take_next();
  if (job == nullptr) return 0;
  uint32_t done = 0;
  if (!job->ended) {
    mover_.step(*job);
    job->ended = job->moved.status != Status::kOk || job->moved.position >= job->end;
    ++done;
  }
  if (!job->ended || !send_message(*job)) {
    queue_of(*job).append(job);
    return done;
  }
  complete(job);
  return done + 1;
}

// False: there is no room yet.
bool JobQueue::send_message(Job& job) noexcept {
  if (job.moved.status != Status::kOk || job.message.empty()) return true;
  const int32_t sent = framed_->send(job.message.data(), job.message.size());
  if (sent == TOWLINE_AGAIN) return false;
  if (sent < 0) job.moved.status = static_cast<Status>(sent);
  return true;
}

bool JobQueue::has_work() const noexcept {
  return any([](const Job& job) {
    return !job.ended || job.moved.status != Status::kOk || job.message.empty();
  });  // what is left waits for room for a message, and the framed engine is woken for that
}

// Null: the queue is empty.
Job* JobQueue::take_next() noexcept {
  if (turns_.take(urgent_.head != nullptr, bulk_.head != nullptr)) return urgent_.take();
  return bulk_.head != nullptr ? bulk_.take() : nullptr;
}

// The host may submit again meanwhile: the job is out of the queue, but not free yet.
void JobQueue::complete(Job* job) noexcept {
  --queued_;
  auto result = plugin::sized<towline_part_result>();
  result.status = static_cast<int32_t>(job->moved.status);
  result.vendor_code = job->moved.error;
  result.fences = TOWLINE_PART_FENCED_LOCAL | TOWLINE_PART_FENCED_REMOTE;
  result.bytes = job->moved.position - job->begin;
  if (job->moved.status != Status::kOk) {
    result.failed_begin = std::min(job->moved.position, job->end);
    result.failed_end = job->end;
  }
  host_.complete(job->cookie, result);
  job->prepared = nullptr;
  job->next = std::exchange(free_, job);
}

void JobQueue::close(Status status) noexcept {
  down_.store(true, std::memory_order_relaxed);
  while (Job* const job = take_next()) {
    if (job->moved.status == Status::kOk) job->moved.status = status;
    complete(job);
  }
}

}  // namespace towline::direct
