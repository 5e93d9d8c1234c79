#include "storage/posix/job.h"

#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <mutex>

#include "base/error.h"
#include "storage/posix/bounce.h"

namespace towline::posix {

Status status_of_failure(int error) noexcept {
  if (error == 0) return Status::kShort;
  // These mean something else to the caller of post than to the system call.
  if (error == EAGAIN || error == EBADF || error == EFAULT) return Status::kIo;
  const Status status = status_from_errno(error);
  return status == Status::kInternal ? Status::kIo : status;
}

void Job::begin(Prepared& prepared, const towline_submit_args& args) {
  message.assign(static_cast<const uint8_t*>(args.message),
                 static_cast<const uint8_t*>(args.message) + args.message_bytes);
  cookie = args.cookie;
  prepared_ = &prepared;
  begin_ = args.begin;
  end_ = args.end;
  cursor_.emplace(*prepared.plan, args.begin, args.end);
  shares_.store(1, std::memory_order_relaxed);
  stopped_.store(false, std::memory_order_relaxed);
  syncing_ = has_returned_ = pooled = runnable = handed_on = hand_over = handed = false;
  cached = (args.flags & TOWLINE_SUBMIT_CACHED) != 0;
  urgent = (args.flags & TOWLINE_SUBMIT_URGENT) != 0;
  syncs_.clear();
  for (size_t i = 0; prepared.syncs && i < prepared.files.size(); ++i)
    syncs_.push_back({prepared.files[i]->sync_failures()});
  moved_ = failed_begin_ = failed_end_ = 0;
  left_from_ = UINT64_MAX;
  status_ = Status::kOk;
  vendor_code_ = 0;
  begun_ns = 0;
  waits = false;
  helpers = 0;
  next = finished_next = nullptr;
}

bool Job::take(Slice& slice, uint64_t max_bytes) noexcept {
  if (stopped()) return false;
  std::lock_guard lock(lock_);
  if (has_returned_) {
    slice = returned_;
    has_returned_ = false;
    return true;
  }
  slice.first = 0;
  slice.position = cursor_->position();
  slice.count = static_cast<uint32_t>(cursor_->next(slice.segments, kSliceSegments, max_bytes));
  return slice.count != 0;
}

void Job::left(uint64_t begin) noexcept {
  std::lock_guard lock(lock_);
  left_from_ = std::min(left_from_, begin);
}

void Job::put_back(const Slice& slice) noexcept {
  if (slice.empty()) return;
  std::lock_guard lock(lock_);
  returned_ = slice;
  has_returned_ = true;
}

void Job::moved(uint64_t bytes) noexcept {
  std::lock_guard lock(lock_);
  moved_ += bytes;
}

void Job::failed(Status status, int vendor_code, uint64_t begin, uint64_t end) noexcept {
  std::lock_guard lock(lock_);
  const bool first = status_ == Status::kOk || failed_begin_ == failed_end_ || begin < failed_begin_;
  if (first) {
    status_ = status;
    vendor_code_ = vendor_code;
    failed_begin_ = begin;
    failed_end_ = end;
  }
  stopped_.store(true, std::memory_order_relaxed);
}

void Job::failed(const Operation& operation, int64_t result) noexcept {
  const uint64_t done = operation.plan_done();
  moved(done);
  const int error = result < 0 ? static_cast<int>(-result) : 0;
  failed(status_of_failure(error), error, operation.position + done,
         operation.position + operation.plan_bytes);
}

void Job::stop(Status status) noexcept {
  std::lock_guard lock(lock_);
  if (status_ == Status::kOk) status_ = status;
  stopped_.store(true, std::memory_order_relaxed);
}

// ---- threads of the pool

bool Job::help(BounceBuffers& buffers) noexcept {
  if (syncing_) {
    // Each file once: neighbours of one file are the rule.
    const File* last = nullptr;
    for (size_t i = 0; i < syncs_.size(); ++i) {
      const File* const file = prepared_->files[i];
      if (file == last || !file->syncs()) continue;
      last = file;
      if (const int error = file->sync(syncs_[i].failures, syncs_[i].turn); error != 0)
        failed(status_of_failure(error), error, begin_, end_);
    }
    return false;
  }
  Slice slice;
  if (!take(slice, slice_bytes())) return false;
  run(slice, buffers);
  return true;
}

void Job::run(Slice& slice, BounceBuffers& buffers) noexcept {
  Cutter cutter(slice, prepared_->files.data(), write());
  const int flags = cached ? RWF_NOWAIT : 0;
  Operation operation;
  operation.job = this;
  while (!slice.empty()) {
    if (stopped()) return left(slice.position);
    (void)cutter.next(operation);
    if (!take_bounce(buffers, operation)) {
      failed(Status::kOutOfMemory, ENOMEM, operation.position, operation.position + operation.plan_bytes);
      return;
    }
    int64_t result = 1;
    while (!operation.finished() && result > 0) {
      result = operation.attempt(flags);
      if (result > 0) operation.advance(static_cast<uint64_t>(result));
    }
    drop_bounce(buffers, operation);
    if (flags != 0 && would_wait(result)) {
      moved(operation.done);
      left(operation.position + operation.done);
      return stop(Status::kAgain);
    }
    if (!operation.finished()) return failed(operation, result);
    moved(operation.plan_bytes);
  }
}

// ---- the end

bool Job::begin_sync() noexcept {
  if (syncing_ || !prepared_->syncs || status_ != Status::kOk) return false;
  syncing_ = true;
  for (size_t i = 0; i < syncs_.size(); ++i) {
    if (prepared_->files[i]->syncs()) syncs_[i].turn = prepared_->files[i]->next_sync();
  }
  return true;
}

towline_part_result Job::result() const noexcept {
  auto result = plugin::sized<towline_part_result>();
  result.status = static_cast<int32_t>(status_);
  result.vendor_code = vendor_code_;
  result.fences = TOWLINE_PART_FENCED_LOCAL | TOWLINE_PART_FENCED_REMOTE;
  result.bytes = moved_;
  if (status_ == Status::kOk) return result;
  // Several work at once, so that what failed need not be the first that is not there.
  uint64_t rest = std::min(left_from_, cursor_->position());
  if (has_returned_) rest = std::min(rest, returned_.position);
  const bool named = failed_begin_ != failed_end_;
  result.failed_begin = named ? std::min(failed_begin_, rest) : rest;
  result.failed_end = named ? failed_end_ : end_;
  return result;
}

}  // namespace towline::posix
