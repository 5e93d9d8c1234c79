#include "agent/ending.h"

#include "agent/worker.h"
#include "base/os/futex.h"

namespace towline {

bool Ending::take(Phase phase) noexcept {
  uint32_t seen = kReady;
  while (!phase_.compare_exchange_weak(seen, phase, std::memory_order_seq_cst)) {
    if (seen == kBusy) return false;
    if (seen == kHeld) cpu_pause();
    seen = kReady;
  }
  return true;
}

Status Ending::poll_outcome() const noexcept {
  const auto status = static_cast<Status>(outcome_.load(std::memory_order_acquire));
  // Done implies fenced, and that it can be posted again at once.
  if (status == Status::kOk && phase_.load(std::memory_order_acquire) == kBusy) return Status::kInProgress;
  return status;
}

void Ending::end(Status status, Worker* worker) noexcept {
  if (ended_.exchange(true, std::memory_order_seq_cst)) return;
  final_status_ = status;
  if (!wants_delivery()) return publish(worker);
  if (worker != nullptr) return worker->finished(*this);
  deliver();
}

void Ending::publish(Worker* worker) noexcept {
  outcome_.store(static_cast<int32_t>(final_status_), std::memory_order_seq_cst);
  drop(worker);
}

bool Ending::share() noexcept {
  uint32_t seen = shares_.load(std::memory_order_relaxed);
  while (seen != 0 && !shares_.compare_exchange_weak(seen, seen + 1, std::memory_order_acq_rel)) {
  }
  return seen != 0;
}

void Ending::wake_waiters() noexcept {
  if (waiters_.load(std::memory_order_seq_cst) == 0) return;
  wake_word_.fetch_add(1, std::memory_order_seq_cst);
  futex_wake_all(wake_word_);
}

void Ending::drop(Worker* worker) noexcept {
  AfterEnding* const after = after_;
  const bool last = shares_.fetch_sub(1, std::memory_order_acq_rel) == 1;
  // A waiter may destroy `this` as soon as the phase is ready and the outcome known: wake through locals
  // only. A thread that begins to wait between these two checks is not woken, so first sleeps are short.
  const bool waiters = waiters_.load(std::memory_order_seq_cst) != 0;
  std::atomic<uint32_t>& word = wake_word_;
  if (waiters) word.fetch_add(1, std::memory_order_seq_cst);
  if (last) phase_.store(kReady, std::memory_order_seq_cst);
  if (waiters) futex_wake_all(word);
  if (last && after != nullptr) after->is_over(*this, worker);
}

}  // namespace towline
