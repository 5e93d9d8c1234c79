#include "transports/memory/copy_queue.h"

#include <cstring>
#include <new>
#include <utility>

#include "base/copy/copy.h"

namespace towline::memory {

namespace {

constexpr size_t kMaxQueued = 1024;
constexpr uint64_t kSliceBytes = 1u << 20;

}  // namespace

int32_t CopyQueue::submit(Prepared& prepared, const towline_submit_args& args) noexcept {
  if (down_.load(std::memory_order_relaxed)) return static_cast<int32_t>(Status::kPeerLost);
  const uint64_t bytes = args.end - args.begin;
  if (bytes > inline_bytes_) return enqueue(prepared, args, false);
  if (!link_.enter(side_)) return static_cast<int32_t>(Status::kPeerLost);
  if (prepared.contiguous_to != nullptr)
    copy_bytes(prepared.contiguous_to + args.begin, prepared.contiguous_from + args.begin, bytes);
  else
    copy_plan(*prepared.plan, prepared.deltas.data(), args.begin, args.end, prepared.op);
  link_.leave(side_);
  if (args.message_bytes == 0) return TOWLINE_OK;
  const int32_t sent = framed_->send(args.message, args.message_bytes);
  return sent == TOWLINE_AGAIN ? enqueue(prepared, args, true) : sent;
}

// `copied`: only the message is left.
int32_t CopyQueue::enqueue(Prepared& prepared, const towline_submit_args& args, bool copied) noexcept try {
  if (queued_ >= kMaxQueued) return TOWLINE_AGAIN;
  if (free_ == nullptr) {
    jobs_.push_back(std::make_unique<Job>());
    free_ = jobs_.back().get();
  }
  Job* job = free_;
  const auto* message = static_cast<const uint8_t*>(args.message);
  job->message.assign(message, message + args.message_bytes);
  free_ = job->next;
  job->cookie = args.cookie;
  job->begin = args.begin;
  job->end = args.end;
  job->position = copied ? args.end : args.begin;
  job->status = Status::kOk;
  job->ended = copied;
  job->copy.emplace(*prepared.plan, prepared.deltas.data(), args.begin, args.end, prepared.op);
  append(job);
  ++queued_;
  host_.wake(worker_);
  return TOWLINE_IN_PROGRESS;
} catch (const std::bad_alloc&) {
  return static_cast<int32_t>(Status::kOutOfMemory);
}

bool CopyQueue::cancel(uint64_t cookie) noexcept {
  for (Job* job = head_; job != nullptr; job = job->next) {
    if (job->cookie != cookie) continue;
    if (job->status == Status::kOk) job->status = Status::kCancelled;
    job->ended = true;
    return true;
  }
  return false;
}

uint32_t CopyQueue::progress() noexcept {
  if (head_ == nullptr) return 0;
  Job* job = take_first();
  uint32_t done = 0;
  if (!job->ended) {
    if (link_.enter(side_)) {
      job->copy->step(kSliceBytes);
      link_.leave(side_);
      job->position = job->copy->position();
    } else {
      job->status = Status::kPeerLost;
    }
    job->ended = job->status != Status::kOk || job->position >= job->end;
    ++done;
  }
  if (!job->ended || !send_message(*job)) {
    append(job);
    return done;
  }
  complete(job);
  return done + 1;
}

// False: there is no room yet.
bool CopyQueue::send_message(Job& job) noexcept {
  if (job.status != Status::kOk || job.message.empty()) return true;
  const int32_t sent = framed_->send(job.message.data(), job.message.size());
  if (sent == TOWLINE_AGAIN) return false;
  if (sent < 0) job.status = static_cast<Status>(sent);
  return true;
}

bool CopyQueue::has_copies() const noexcept {
  for (const Job* job = head_; job != nullptr; job = job->next)
    if (!job->ended || job->status != Status::kOk || job->message.empty()) return true;
  return false;  // what is left waits for room for a message, and the framed engine is woken for that
}

void CopyQueue::append(Job* job) noexcept {
  job->next = nullptr;
  *tail_ = job;
  tail_ = &job->next;
}

CopyQueue::Job* CopyQueue::take_first() noexcept {
  Job* job = head_;
  head_ = job->next;
  if (head_ == nullptr) tail_ = &head_;
  return job;
}

// The host may submit again meanwhile: the job is out of the queue, but not free yet.
void CopyQueue::complete(Job* job) noexcept {
  --queued_;
  auto result = plugin::sized<towline_part_result>();
  result.status = static_cast<int32_t>(job->status);
  result.fences = TOWLINE_PART_FENCED_LOCAL | TOWLINE_PART_FENCED_REMOTE;
  result.bytes = job->position - job->begin;
  if (job->status != Status::kOk) {
    result.failed_begin = job->position;
    result.failed_end = job->end;
  }
  host_.complete(job->cookie, result);
  job->next = std::exchange(free_, job);
}

void CopyQueue::close(Status status) noexcept {
  down_.store(true, std::memory_order_relaxed);
  while (head_ != nullptr) {
    Job* job = take_first();
    if (job->status == Status::kOk) job->status = status;
    complete(job);
  }
}

}  // namespace towline::memory
