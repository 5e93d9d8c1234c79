#include "transports/cuda/copy_team.h"

#include <algorithm>
#include <cstring>
#include <exception>

#include "base/copy/copy.h"
#include "base/copy/stream_copy.h"
#include "base/sync/spin.h"

namespace towline::cuda {

namespace {

constexpr uint32_t kLooks = 1000;  // checks for more work before a thread sleeps: some 50 us

}  // namespace

CopyTeam::~CopyTeam() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  given_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

// Starts as many threads as the system allows. Without any, look() does all the copying.
void CopyTeam::start_threads() noexcept try {
  threads_.reserve(most_threads_);
  while (threads_.size() < most_threads_) {
    threads_.emplace_back([this] { run(); });
    started_.fetch_add(1, std::memory_order_relaxed);
  }
} catch (const std::exception&) {
}

void CopyTeam::begin(Job& job) noexcept {
  job.shares = static_cast<uint32_t>((job.bytes + kShareBytes - 1) / kShareBytes);
  job.next.store(0, std::memory_order_relaxed);
  job.left.store(job.shares, std::memory_order_relaxed);
  job.after = nullptr;
  job.users = 0;
  if (job.shares <= 1) {  // not worth waking a thread
    (void)copy_share(job);
    return;
  }
  bool wake = false;
  {
    const std::lock_guard lock(mutex_);
    if (threads_.empty()) start_threads();
    (last_ == nullptr ? first_ : last_->after) = &job;
    last_ = &job;
    queued_.fetch_add(1, std::memory_order_relaxed);
    wake = sleeping_ != 0;
  }
  if (wake) given_.notify_all();
}

bool CopyTeam::look(Job& job) noexcept {
  (void)copy_share(job);
  if (job.left.load(std::memory_order_acquire) != 0) return false;
  if (job.shares <= 1) return true;
  const std::lock_guard lock(mutex_);
  unlink(job);
  return job.users == 0;
}

// Copies the next share. False: all shares are taken.
bool CopyTeam::copy_share(Job& job) noexcept {
  if (job.next.load(std::memory_order_relaxed) >= job.shares) return false;
  const uint32_t share = job.next.fetch_add(1, std::memory_order_relaxed);
  if (share >= job.shares) return false;
  const uint64_t begin = share * kShareBytes;
  const uint64_t end = std::min(begin + kShareBytes, job.bytes);
  const auto ends_before = [](const Piece& piece, uint64_t at) {
    return piece.position + piece.length <= at;
  };
  const Piece* piece = std::lower_bound(job.pieces, job.pieces + job.count, begin, ends_before);
  for (; piece != job.pieces + job.count && piece->position < end; ++piece) {
    const uint64_t skip = begin > piece->position ? begin - piece->position : 0;
    const uint64_t stop = std::min(piece->length, end - piece->position);
    auto* const to = reinterpret_cast<void*>(piece->to + skip);
    const auto* const from = reinterpret_cast<const void*>(piece->from + skip);
    if (job.past_caches)
      stream_copy_in_pages(to, from, stop - skip);
    else
      copy_bytes(to, from, stop - skip);
  }
  job.left.fetch_sub(1, std::memory_order_release);
  return true;
}

void CopyTeam::unlink(Job& job) noexcept {
  Job* before = nullptr;
  for (Job* at = first_; at != nullptr; before = at, at = at->after) {
    if (at != &job) continue;
    (before == nullptr ? first_ : before->after) = job.after;
    if (last_ == &job) last_ = before;
    queued_.fetch_sub(1, std::memory_order_relaxed);
    return;
  }
}

// Waits for the first job. Null: the team ends.
CopyTeam::Job* CopyTeam::take() noexcept {
  for (uint32_t i = 0; i < kLooks && queued_.load(std::memory_order_relaxed) == 0 && !stop_; ++i) cpu_pause();
  std::unique_lock lock(mutex_);
  while (first_ == nullptr && !stop_) {
    ++sleeping_;
    given_.wait(lock);
    --sleeping_;
  }
  if (first_ == nullptr) return nullptr;
  ++first_->users;
  return first_;
}

void CopyTeam::leave(Job& job) noexcept {
  const std::lock_guard lock(mutex_);
  unlink(job);  // nothing of it is left to take
  --job.users;
}

void CopyTeam::run() noexcept {
  while (Job* const job = take()) {
    while (copy_share(*job)) {
    }
    leave(*job);
  }
}

}  // namespace towline::cuda
