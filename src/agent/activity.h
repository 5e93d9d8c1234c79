// What applications are told of without asking for it: notices and completions of posts. Threads sleep until some are
// there, and a descriptor is readable meanwhile.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "agent/inbox.h"
#include "base/sync/mpsc_queue.h"
#include "base/sync/wake.h"
#include "towline/towline.h"

namespace towline {

// Any thread.
class Activity {
 public:
  explicit Activity(const Inbox& inbox) : inbox_(inbox), completions_(kCompletionCapacity) {}
  Activity(const Activity&) = delete;
  Activity& operator=(const Activity&) = delete;

  // Something can be pulled, or the agent closes.
  void notify() noexcept;
  [[nodiscard]] bool there() const noexcept { return !inbox_.looks_empty() || !completions_.looks_empty(); }
  // Readable while something is there. From the first call on it is kept so.
  [[nodiscard]] int event_fd() noexcept;
  // After pulling: the descriptor is no longer readable if nothing is left.
  void settle() noexcept;
  // For waiting (waiter.h): grows with each notify().
  [[nodiscard]] std::atomic<uint32_t>& word() noexcept { return word_; }
  [[nodiscard]] std::atomic<uint32_t>& waiters() noexcept { return waiters_; }

  // A completion is reserved at post, filled at the end, and pulled by the application. False: there are too many.
  [[nodiscard]] bool reserve_completion() noexcept;
  void release_completion() noexcept { reserved_.fetch_sub(1, std::memory_order_relaxed); }
  void push_completion(const towline_completion_t& completion) noexcept;
  size_t pull_completions(towline_completion_t* completions, size_t capacity) noexcept;
  [[nodiscard]] bool no_completions() const noexcept { return completions_.looks_empty(); }

 private:
  static constexpr std::size_t kCompletionCapacity = 1 << 16;

  const Inbox& inbox_;
  MpmcQueue<towline_completion_t> completions_;
  std::atomic<uint64_t> reserved_{0};
  EventFd event_fd_;
  std::atomic<bool> event_fd_used_{false};
  std::atomic<bool> signaled_{false};
  std::atomic<uint32_t> word_{0};
  std::atomic<uint32_t> waiters_{0};
};

}  // namespace towline
