// The end of something that runs, for the threads that wait for it: a post (post.h) or a group of posts (group.h).
//
// It ends in two steps. The *outcome* is set exactly once, by the first of: the last byte, the deadline, cancel,
// the peer's loss. The *fence* comes when nothing of it is under way any more. It is ready again after both.
#pragma once

#include <atomic>
#include <cstdint>

#include "agent/waiter.h"
#include "towline/status.h"

namespace towline {

class Ending;
class Worker;
struct Part;

// Is told when something is ready again.
class AfterEnding {
 public:
  // The last use of `ending` by the run that has ended. `worker`: whose lock the calling thread holds; null: none.
  virtual void is_over(Ending& ending, Worker* worker) noexcept = 0;

 protected:
  ~AfterEnding() = default;
};

class Ending {
 public:
  Ending(const Ending&) = delete;
  Ending& operator=(const Ending&) = delete;

  [[nodiscard]] bool ready() const noexcept { return phase_.load(std::memory_order_acquire) == kReady; }
  // Sets the outcome, unless it is set. `worker`: the one whose lock the caller holds; null: none.
  void end(Status status, Worker* worker) noexcept;
  // Called from the worker's delivery, without locks: publishes the outcome, and tells the application.
  virtual void deliver() noexcept = 0;

  // ---- its parts, under their worker's lock
  // Once per pass for parts in the establishing list; true when the part no longer needs it.
  virtual bool step_part(Part& part, uint64_t now_ns) noexcept = 0;
  // Makes the backend end the part soon, if it was submitted.
  virtual void hurry(Part& part) noexcept = 0;
  // The deadline of a part passed.
  virtual void expire(Part& part) noexcept = 0;

  // A share of a run that is under way, so that it is not over before drop(). False: it is.
  [[nodiscard]] bool share() noexcept;
  // Gives up a share of the busy phase: the outcome's, the work's, or one of share().
  void drop(Worker* worker) noexcept;

  Ending* finished_next = nullptr;

 protected:
  enum Phase : uint32_t { kReady = 0, kBusy = 1, kHeld = 2 };

  explicit Ending(Phase phase) noexcept : phase_(phase), outcome_(static_cast<int32_t>(Status::kNotFound)) {}
  virtual ~Ending() = default;

  // Must the end be delivered without locks? Else the thread that finds it publishes it.
  [[nodiscard]] virtual bool wants_delivery() const noexcept = 0;
  // From ready to `phase`; false: it is busy. Waits for a holder, which releases it after a few instructions.
  [[nodiscard]] bool take(Phase phase) noexcept;
  [[nodiscard]] Status poll_outcome() const noexcept;
  void publish(Worker* worker) noexcept;
  void wake_waiters() noexcept;
  // `each_worker` calls its argument with every worker concerned.
  template <class EachWorker, class Done>
  [[nodiscard]] bool wait_until(bool hosted, EachWorker&& each_worker, Done&& done,
                                uint64_t timeout_ns) noexcept {
    if (done()) return true;
    Waiter waiter{wake_word_, waiters_, hosted, kSpinBeforeSleepNs, kShortestSleepNs};
    // A thread that waits in slices spins only in the first one: once it has slept, the hosted thread drives.
    waiter.rests = hosted && slept_.load(std::memory_order_relaxed);
    const bool is_done = waiter.wait(timeout_ns, each_worker, done);
    if (waiter.slept && !is_done) slept_.store(true, std::memory_order_relaxed);
    return is_done;
  }

  static constexpr uint64_t kSpinBeforeSleepNs = 30 * kMicrosecondNs;
  static constexpr uint64_t kShortestSleepNs =
      kMillisecondNs;  // drop() may miss a thread that begins to wait

  std::atomic<uint32_t> phase_;
  std::atomic<int32_t> outcome_;
  std::atomic<uint32_t> shares_{0};
  std::atomic<bool> ended_{true};
  std::atomic<bool> slept_{false};  // a waiter slept and handed over
  Status final_status_ = Status::kNotFound;
  std::atomic<uint32_t> waiters_{0};
  std::atomic<uint32_t> wake_word_{0};
  AfterEnding* after_ = nullptr;  // null: nobody is told
};

}  // namespace towline
