#include "transports/shm/direct_path.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

#include "base/clock.h"
#include "base/copy/copy.h"
#include "base/ticks.h"

namespace towline::shm {

namespace {

constexpr size_t kMaxQueued = 1024;
constexpr uint64_t kMappedSliceBytes = 1u << 20;
constexpr uint64_t kProcessVmSliceBytes = 4u << 20;
// A pid can't come to name another process, nor a new image run, sooner after the last look than this: see
// README.md.
constexpr uint64_t kAliveForNs = 14 * kMicrosecondNs;
constexpr uint64_t kAliveForTicks = 6000;  // 6 us at most: not even the clock is looked at
// A copy of so few bytes is over before that time has passed: looking before it is enough.
constexpr uint64_t kBriefBytes = 64u << 10;
constexpr uint32_t kFenced = TOWLINE_PART_FENCED_LOCAL | TOWLINE_PART_FENCED_REMOTE;

}  // namespace

void DirectPath::open(framing::Connection& framed, pid_t pid, int socket, int pidfd) noexcept {
  framed_ = &framed;
  pid_ = pid;
  socket_ = socket;
  pidfd_ = pidfd;
}

bool DirectPath::peer_alive() noexcept {
  const uint64_t now_ticks = ticks();
  if (kHasTicks && now_ticks - seen_alive_ticks_.load(std::memory_order_relaxed) < kAliveForTicks)
    return true;
  const uint64_t now_ns = monotonic_now_ns();
  if (now_ns - seen_alive_ns_.load(std::memory_order_relaxed) < kAliveForNs) {
    seen_alive_ticks_.store(now_ticks, std::memory_order_relaxed);
    return true;
  }
  // A closed socket: the process ended, or runs another image (the socket is close-on-exec). A readable
  // pidfd: it ended while a child of it still holds the socket.
  pollfd entries[2] = {{socket_, POLLRDHUP, 0}, {pidfd_, POLLIN, 0}};
  if (poll(entries, pidfd_ >= 0 ? 2 : 1, 0) != 0) return false;
  seen_alive_ns_.store(now_ns, std::memory_order_relaxed);
  seen_alive_ticks_.store(now_ticks, std::memory_order_relaxed);
  return true;
}

int32_t DirectPath::submit(Prepared& prepared, const towline_submit_args& args) noexcept {
  if (down_.load(std::memory_order_relaxed)) return static_cast<int32_t>(Status::kPeerLost);
  const uint64_t bytes = args.end - args.begin;
  if (bytes > prepared.inline_bytes) return enqueue(prepared, args, nullptr);
  if (prepared.to == nullptr) return copy_inline(prepared, args);
  copy_bytes(prepared.to + args.begin, prepared.from + args.begin, bytes);
  if (args.message_bytes == 0) return TOWLINE_OK;
  const CopyResult copied{args.end, 0};
  const int32_t sent = framed_->send(args.message, args.message_bytes);
  return sent == TOWLINE_AGAIN ? enqueue(prepared, args, &copied) : sent;
}

int32_t DirectPath::copy_inline(Prepared& prepared, const towline_submit_args& args) noexcept {
  CopyResult copied{args.end, 0};
  if (prepared.process_vm) {
    copied = copy_with_process_vm(prepared, args);
    if (copied.error != 0) {
      // Where no lock is held there is only a status to give; else the part fails with the exact range.
      const bool any_thread = (prepared.flags & TOWLINE_PREPARED_CONCURRENT) != 0 && args.message_bytes == 0;
      if (any_thread) return static_cast<int32_t>(status_from_process_vm(copied.error));
      return enqueue(prepared, args, &copied);
    }
  } else {
    copy_plan(*prepared.plan, prepared.deltas.data(), args.begin, args.end, prepared.op);
  }
  if (args.message_bytes == 0) return TOWLINE_OK;
  const int32_t sent = framed_->send(args.message, args.message_bytes);
  return sent == TOWLINE_AGAIN ? enqueue(prepared, args, &copied) : sent;
}

CopyResult DirectPath::copy_with_process_vm(const Prepared& prepared,
                                            const towline_submit_args& args) noexcept {
  if (!prepared.one_piece || args.end - args.begin > kBriefBytes) {
    plugin::Cursor cursor{*prepared.plan, args.begin, args.end};
    return copy_with_process_vm(cursor, prepared, args.end - args.begin);
  }
  if (!peer_alive()) return {args.begin, ESRCH};
  return copy_piece(prepared.op, pid_, prepared.local, prepared.remote, args.begin, args.end);
}

CopyResult DirectPath::copy_with_process_vm(plugin::Cursor& cursor, const Prepared& prepared,
                                            uint64_t max_bytes) noexcept {
  const uint64_t begin = cursor.position();
  if (!peer_alive()) return {begin, ESRCH};
  CopyResult result = copy_slice(cursor, prepared.ways.data(), prepared.op, pid_, max_bytes);
  const bool took_long = result.position - begin > kBriefBytes;
  if (result.error == 0 && took_long && !peer_alive()) result = {begin, ESRCH};
  return result;
}

// `copied`: what was moved already; the part then only has its message, or its failure, left.
int32_t DirectPath::enqueue(Prepared& prepared, const towline_submit_args& args,
                            const CopyResult* copied) noexcept try {
  if (queued_ >= kMaxQueued) return static_cast<int32_t>(Status::kAgain);
  if (free_ == nullptr) {
    jobs_.push_back(std::make_unique<Job>());
    free_ = jobs_.back().get();
  }
  Job* job = free_;
  const auto* message = static_cast<const uint8_t*>(args.message);
  job->message.assign(message, message + args.message_bytes);
  free_ = job->next;
  job->next = nullptr;
  job->prepared = &prepared;
  job->cookie = args.cookie;
  job->begin = job->position = args.begin;
  job->end = args.end;
  job->error = 0;
  job->status = Status::kOk;
  job->ended = false;
  job->copy.reset();
  job->cursor.reset();
  if (copied != nullptr) {
    job->position = copied->position;
    job->error = copied->error;
    job->status = status_from_process_vm(copied->error);
    job->ended = true;
  } else if (prepared.process_vm || prepared.large_pieces != 0) {
    job->cursor.emplace(*prepared.plan, args.begin, args.end);
  } else {
    job->copy.emplace(*prepared.plan, prepared.deltas.data(), args.begin, args.end, prepared.op);
  }
  *tail_ = job;
  tail_ = &job->next;
  ++queued_;
  host_.wake(worker_);
  return TOWLINE_IN_PROGRESS;
} catch (const std::bad_alloc&) {
  return static_cast<int32_t>(Status::kOutOfMemory);
}

bool DirectPath::cancel(uint64_t cookie) noexcept {
  for (Job* job = head_; job != nullptr; job = job->next) {
    if (job->cookie != cookie) continue;
    if (!job->ended || !job->message.empty()) {
      job->ended = true;
      job->status = Status::kCancelled;
    }
    return true;
  }
  return false;
}

void DirectPath::copy_some(Job& job) noexcept {
  if (job.copy) {
    job.copy->step(kMappedSliceBytes);
    job.position = job.copy->position();
  } else if (const uint64_t piece_bytes = job.prepared->large_pieces; piece_bytes != 0) {
    large_copy_.step(*job.cursor, piece_bytes, job.prepared->deltas.data(), job.prepared->op,
                     kMappedSliceBytes);
    job.position = job.cursor->position();
  } else {
    const CopyResult result = copy_with_process_vm(*job.cursor, *job.prepared, kProcessVmSliceBytes);
    job.position = result.position;
    job.error = result.error;
    job.status = status_from_process_vm(result.error);
  }
  job.ended = job.status != Status::kOk || job.position >= job.end;
}

// True when nothing is left to do but to complete it.
bool DirectPath::finish(Job& job) noexcept {
  if (job.status != Status::kOk || job.message.empty()) return true;
  const int32_t sent = framed_->send(job.message.data(), job.message.size());
  if (sent == TOWLINE_AGAIN) return false;
  if (sent < 0) job.status = static_cast<Status>(sent);
  return true;
}

uint32_t DirectPath::progress() noexcept {
  Job* job = head_;
  if (job == nullptr) return 0;
  uint32_t done = 0;
  if (!job->ended) {
    copy_some(*job);
    ++done;
  }
  head_ = job->next;
  if (head_ == nullptr) tail_ = &head_;
  job->next = nullptr;
  if (!job->ended || !finish(*job)) {
    *tail_ = job;
    tail_ = &job->next;
    return done;
  }
  --queued_;
  complete(*job);  // may submit again: the job is out of the queue, but not yet free
  recycle(job);
  return done + 1;
}

bool DirectPath::has_copies() const noexcept {
  for (const Job* job = head_; job != nullptr; job = job->next)
    if (!job->ended || job->status != Status::kOk || job->message.empty()) return true;
  return false;  // what is left waits for room for a message, and the framed engine is woken for that
}

void DirectPath::complete(const Job& job) noexcept {
  auto result = plugin::sized<towline_part_result>();
  result.status = static_cast<int32_t>(job.status);
  result.vendor_code = job.error;
  result.fences = kFenced;
  result.bytes = job.position - job.begin;
  if (job.status != Status::kOk) {
    result.failed_begin = std::min(job.position, job.end);
    result.failed_end = job.end;
  }
  host_.complete(job.cookie, result);
}

void DirectPath::recycle(Job* job) noexcept {
  job->prepared = nullptr;
  job->next = free_;
  free_ = job;
}

void DirectPath::close(Status status) noexcept {
  down_.store(true, std::memory_order_relaxed);
  while (head_ != nullptr) {
    Job* job = head_;
    head_ = job->next;
    if (head_ == nullptr) tail_ = &head_;
    --queued_;
    if (!job->ended || job->status == Status::kOk) job->status = status;
    complete(*job);
    recycle(job);
  }
}

}  // namespace towline::shm
