// A progress engine. One worker owns a share of the agent's connections, and everything of theirs happens
// under its lock: posting, arrivals, completions, deadlines, heartbeats. The lock is only ever tried on the
// data path; who does not get it leaves a note in the queue, and the holder does the work.
//
// Who makes progress. Hosted: a thread of ours, and any application thread that waits or polls. While
// application threads drive, ours stays parked and looks from time to time whether they still do; when nobody
// drives it spins for a short while, then arms the backends (peers must wake us from then on) and sleeps in
// epoll. Caller-driven: application threads only; one that waits arms and sleeps in epoll itself.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <unordered_map>
#include <vector>

#include "agent/inbox.h"
#include "agent/intrusive_list.h"
#include "base/mpsc_queue.h"
#include "base/poller.h"
#include "base/spin.h"
#include "base/wake.h"
#include "towline/plugin/v1.h"

namespace towline {

class Agent;
class Link;
class StagedTransfer;
class Transfer;
struct Part;

class Worker {
 public:
  Worker(Agent& agent, uint32_t index);
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  ~Worker();

  // Hosted mode: starts and stops the thread. stop() joins; no progress is made by it afterwards.
  void start_thread();
  void stop_thread() noexcept;
  // In a forked child: the thread is the parent's.
  void forget_thread() noexcept {
    if (thread_.joinable()) thread_.detach();
  }

  [[nodiscard]] bool try_lock() noexcept {
    return !locked_.load(std::memory_order_relaxed) && !locked_.exchange(true, std::memory_order_acquire);
  }
  void lock() noexcept;
  // Also delivers, after letting go, the completions that were found under the lock.
  void unlock() noexcept;
  // RAII for the control path.
  class Guard {
   public:
    explicit Guard(Worker& worker) noexcept : worker_(worker) { worker_.lock(); }
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;
    ~Guard() { worker_.unlock(); }

   private:
    Worker& worker_;
  };

  // One pass, if nobody else is making one; how much was done. Application threads.
  uint32_t drive() noexcept;
  // Caller-driven: sleeps until something may have happened or deadline_ns (system clock).
  void sleep_driving(uint64_t deadline_ns) noexcept;
  // An application thread stops driving and goes to sleep elsewhere: our thread takes over now.
  void hand_over() noexcept;
  // Makes a sleeping worker run soon. Any thread.
  void wake() noexcept;

  // Links have something to look after that should not wait for the next round. Any thread; wake() sees to
  // sleepers.
  void maintain_soon() noexcept { maintenance_due_.store(true, std::memory_order_release); }
  // Any thread: work for whoever holds the lock next. False when the queue is full.
  [[nodiscard]] bool enqueue(Part* part) noexcept;

  // Under the lock from here on.
  int32_t watch(int fd, uint32_t events, towline_ready_fn ready, void* argument, bool again) noexcept;
  void unwatch(int fd) noexcept;
  void track(Part& part) noexcept;  // in flight: deadlines are watched
  void untrack(Part& part) noexcept;
  void establish_later(Part& part) noexcept;  // tried again in each pass until it is submitted or has failed
  void add_staged(StagedTransfer& transfer) noexcept;  // stepped in each pass until it is removed
  void remove_staged(StagedTransfer& transfer) noexcept;
  void step_staged_soon() noexcept { staged_waits_ = true; }  // whatever happens in between
  void finished(Transfer& transfer) noexcept;                 // to be delivered when the lock is released
  void add_link(Link& link) { links_.push_back(&link); }
  // Once, before the first pass.
  void know_backends(std::size_t count) { interest_.resize(count); }
  // A part went to the backend with this index, or came back.
  void part_started(uint32_t backend) noexcept { ++interest_[backend].in_flight; }
  void part_ended(uint32_t backend) noexcept { --interest_[backend].in_flight; }
  void remove_link(Link& link) noexcept { std::erase(links_, &link); }
  [[nodiscard]] const std::vector<Link*>& links() const noexcept { return links_; }
  // End of everything: parts in flight get `status`. Used on close.
  void fail_everything(int32_t status) noexcept;
  // From now on its passes do nothing and its links do not connect, whoever still calls.
  void retire() noexcept { retired_ = true; }
  [[nodiscard]] bool retired() const noexcept { return retired_; }

  // When the pass in hand, or the last one, began: to within a microsecond of passes in a row.
  [[nodiscard]] uint64_t pass_began_ns() const noexcept { return now_ns_; }

  [[nodiscard]] uint32_t index() const noexcept { return index_; }
  [[nodiscard]] Agent& agent() const noexcept { return agent_; }
  [[nodiscard]] NoticePool& notices() noexcept { return notice_pool_; }
  [[nodiscard]] bool hosted() const noexcept { return thread_.joinable(); }

 private:
  struct Watch {
    towline_ready_fn ready = nullptr;
    void* argument = nullptr;
    int fd = -1;
    bool listed = false;  // in epoll; not while it is watched for nothing
    bool dead = false;
    uint32_t throws = 0;  // in a row
  };

  // What a worker knows of one backend.
  struct Interest {
    uint32_t in_flight = 0;     // parts there
    uint32_t empty_passes = 0;  // in a row
    uint64_t looked_ns = 0;     // the last time, by the pass's clock
  };

  uint32_t pass(bool poll_descriptors) noexcept;  // under the lock
  uint32_t progress_backends(uint64_t now_ns) noexcept;
  uint64_t read_clock() noexcept;
  uint32_t drain_queue() noexcept;
  uint32_t step_establishing(uint64_t now_ns) noexcept;
  uint32_t step_staged(uint64_t now_ns) noexcept;
  void check_deadlines(uint64_t now_ns) noexcept;
  [[nodiscard]] bool time_to_poll() noexcept;  // asked once a pass
  uint32_t handle_events(uint64_t timeout_ns) noexcept;
  void call(Watch& watch, uint32_t events) noexcept;
  bool arm() noexcept;  // true: armed, may sleep
  void disarm() noexcept;
  [[nodiscard]] uint64_t sleep_limit_ns(uint64_t now_ns) const noexcept;
  void run_thread() noexcept;
  void park(uint64_t ns) noexcept;
  void sleep_in_epoll(uint64_t limit_ns) noexcept;
  void deliver(Transfer* list) noexcept;

  Agent& agent_;
  const uint32_t index_;

  alignas(kNoSharingBytes) std::atomic<bool> locked_{false};
  alignas(kNoSharingBytes) std::atomic<uint32_t> waiting_lockers_{0};
  std::atomic<uint64_t> driven_{0};    // passes by application threads
  std::atomic<bool> sleeping_{false};  // somebody is, or is about to be, in epoll_wait
  alignas(kNoSharingBytes) std::atomic<uint32_t> park_word_{0};
  std::atomic<bool> stop_{false};

  BoundedQueue<Part*, Consumers::kOne> queue_;
  Poller poller_;
  EventFd wake_;  // work came in: drained by whoever polls next, and then does it
  EventFd kick_;  // whoever sleeps in epoll must arm again: drained by the sleeper alone
  bool armed_ = false;
  bool retired_ = false;
  uint32_t passes_since_poll_ = 0;
  uint64_t next_poll_ns_ = 0;
  std::unordered_map<int, std::unique_ptr<Watch>> watches_;
  std::vector<std::unique_ptr<Watch>> dead_watches_;
  IntrusiveList<Part> in_flight_;
  uint64_t next_deadline_ns_ = UINT64_MAX;
  std::vector<Part*> establishing_;
  IntrusiveList<StagedTransfer> staged_;
  bool staged_waits_ = false;   // one of them, for what nothing wakes us for
  uint64_t now_ns_ = 0;         // as last read,
  uint64_t clock_read_at_ = 0;  // in ticks
  uint64_t next_maintenance_ns_ = 0;
  std::atomic<bool> maintenance_due_{false};
  std::vector<Link*> links_;
  std::vector<Interest> interest_;  // by the backend's index
  Transfer* finished_ = nullptr;
  Transfer** finished_tail_ = &finished_;
  NoticePool notice_pool_;
  std::thread thread_;
};

}  // namespace towline
