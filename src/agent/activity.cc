#include "agent/activity.h"

#include "base/check.h"
#include "base/os/futex.h"

namespace towline {

void Activity::notify() noexcept {
  word_.fetch_add(1, std::memory_order_seq_cst);
  if (waiters_.load(std::memory_order_seq_cst) != 0) futex_wake_all(word_);
  if (event_fd_used_.load(std::memory_order_acquire) &&
      !signaled_.exchange(true, std::memory_order_acq_rel)) {
    event_fd_.signal();
  }
}

int Activity::event_fd() noexcept {
  event_fd_used_.store(true, std::memory_order_seq_cst);
  if (there()) notify();
  return event_fd_.fd();
}

void Activity::settle() noexcept {
  if (!event_fd_used_.load(std::memory_order_relaxed) || there()) return;
  event_fd_.drain();
  signaled_.store(false, std::memory_order_seq_cst);
  if (there()) notify();
}

bool Activity::reserve_completion() noexcept {
  if (reserved_.fetch_add(1, std::memory_order_relaxed) < kCompletionCapacity) return true;
  release_completion();
  return false;
}

void Activity::push_completion(const towline_completion_t& completion) noexcept {
  const bool pushed = completions_.try_push(completion);
  TOWLINE_DCHECK(pushed, "a completion was reserved");
  (void)pushed;
  notify();
}

size_t Activity::pull_completions(towline_completion_t* completions, size_t capacity) noexcept {
  size_t count = 0;
  while (count < capacity) {
    const auto completion = completions_.try_pop();
    if (!completion) break;
    completions[count++] = *completion;
    release_completion();
  }
  settle();
  return count;
}

}  // namespace towline
