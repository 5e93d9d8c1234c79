// A progress engine. One worker owns a share of the agent's connections; all their work happens under its
// lock: posting, arrivals, completions, deadlines, heartbeats. The data path only tries the lock; a thread
// that does not get it leaves a note in the queue, and the holder does the work.
//
// Which threads make progress. Hosted: the worker's own thread, and any application thread that waits or
// polls. While application threads drive, the worker's thread pauses and checks from time to time whether
// they still do. When none drives, it spins for a short while, then arms the backends (from then on peers
// must wake it) and sleeps in epoll. Caller-driven: application threads only; one that waits arms and sleeps
// in epoll itself.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <unordered_map>
#include <vector>

#include "agent/inbox.h"
#include "agent/intrusive_list.h"
#include "base/os/placement.h"
#include "base/os/poller.h"
#include "base/sync/mpsc_queue.h"
#include "base/sync/spin.h"
#include "base/sync/wake.h"
#include "towline/plugin/v1.h"

namespace towline {

class Agent;
class Link;
class StagedTransfer;
class Ending;
struct Part;

class Worker {
 public:
  Worker(Agent& agent, uint32_t index, WorkerPlace place = {});
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  ~Worker();

  // Hosted mode: starts and stops the thread. stop() joins it.
  void start_thread();
  void stop_thread() noexcept;
  // For a forked child: the thread belongs to the parent.
  void forget_thread() noexcept {
    if (thread_.joinable()) thread_.detach();
  }

  [[nodiscard]] bool try_lock() noexcept {
    return !locked_.load(std::memory_order_relaxed) && !locked_.exchange(true, std::memory_order_acquire);
  }
  void lock() noexcept;
  // Also delivers, after releasing the lock, the completions that were found under it.
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

  // One pass, unless another thread is making one; returns the number of things done. Application threads.
  uint32_t drive() noexcept;
  // Caller-driven: sleeps until something may have happened or deadline_ns (system clock).
  void sleep_driving(uint64_t deadline_ns) noexcept;
  // An application thread stops driving and sleeps elsewhere: the hosted thread takes over now.
  void hand_over() noexcept;
  // Makes a sleeping worker run soon. Any thread.
  void wake() noexcept;

  // Links need maintenance before the next round. Any thread; call wake() for a sleeping worker.
  void maintain_soon() noexcept { maintenance_due_.store(true, std::memory_order_release); }
  // Any thread: queues work for the next holder of the lock. False if the queue is full.
  [[nodiscard]] bool enqueue(Part* part) noexcept;
  // An urgent part was queued: what the holder of the lock copies for long stops soon.
  void hurry() noexcept { urgent_waits_.store(true, std::memory_order_relaxed); }
  [[nodiscard]] bool urgent_waits() const noexcept { return urgent_waits_.load(std::memory_order_relaxed); }

  // Everything below: under the lock.
  int32_t watch(int fd, uint32_t events, towline_ready_fn ready, void* argument, bool again) noexcept;
  void unwatch(int fd) noexcept;
  void track(Part& part) noexcept;  // in flight: deadlines are watched
  void untrack(Part& part) noexcept;
  void establish_later(Part& part) noexcept;  // tried again in each pass until it is submitted or has failed
  // Parts that wait to be tried again are tried at this time at the latest, of the agent's clock.
  void step_at(uint64_t ns) noexcept {
    if (ns < next_step_ns_) next_step_ns_ = ns;
  }
  void add_staged(StagedTransfer& transfer) noexcept;  // makes progress in each pass until removed
  void remove_staged(StagedTransfer& transfer) noexcept;
  void step_staged_soon() noexcept { staged_waits_ = true; }  // in the next pass, even without an event
  void finished(Ending& ending) noexcept;                     // to be delivered when the lock is released
  void add_link(Link& link) { links_.push_back(&link); }
  // Once, before the first pass.
  void know_backends(std::size_t count) { interest_.resize(count); }
  // A part was submitted to the backend with this index, or ended.
  void part_started(uint32_t backend) noexcept { ++interest_[backend].in_flight; }
  void part_ended(uint32_t backend) noexcept { --interest_[backend].in_flight; }
  void remove_link(Link& link) noexcept { std::erase(links_, &link); }
  [[nodiscard]] const std::vector<Link*>& links() const noexcept { return links_; }
  // Ends all parts in flight with `status`. Used on close.
  void fail_everything(int32_t status) noexcept;
  // From now on its passes do nothing and its links do not connect, even if threads still call.
  void retire() noexcept;
  [[nodiscard]] bool retired() const noexcept { return retired_; }

  // When the current or last pass began; within a microsecond for consecutive passes.
  [[nodiscard]] uint64_t pass_began_ns() const noexcept { return now_ns_; }

  [[nodiscard]] uint32_t index() const noexcept { return index_; }
  [[nodiscard]] Agent& agent() const noexcept { return agent_; }
  [[nodiscard]] NoticePool& notices() noexcept { return notice_pool_; }
  [[nodiscard]] bool hosted() const noexcept { return thread_.joinable(); }
  [[nodiscard]] const WorkerPlace& place() const noexcept { return place_; }  // of its thread

 private:
  struct Watch {
    towline_ready_fn ready = nullptr;
    void* argument = nullptr;
    int fd = -1;
    bool listed = false;  // in epoll; not while it is watched without events
    bool dead = false;
    uint32_t throws = 0;  // in a row
  };

  enum class Arming : uint8_t {
    kNone,
    kAsleep,  // the backends wake the thread that sleeps
    kLeft,    // that thread is awake; the next pass that is not its first disarms them
  };

  // A worker's state of one backend.
  struct Interest {
    uint32_t in_flight = 0;     // parts there
    uint32_t empty_passes = 0;  // in a row
    uint64_t looked_ns = 0;     // last checked, by the pass's clock
  };

  uint32_t pass(bool poll_descriptors) noexcept;  // under the lock
  enum class Until : uint8_t { kAllHadATurn, kOneHadWork };
  uint32_t progress_backends(uint64_t now_ns, Until until) noexcept;
  uint64_t read_clock() noexcept;
  uint32_t drain_queue() noexcept;
  uint32_t step_establishing(uint64_t now_ns) noexcept;
  uint32_t step_staged(uint64_t now_ns) noexcept;
  void check_deadlines(uint64_t now_ns) noexcept;
  [[nodiscard]] Part* take_establishing() noexcept;
  [[nodiscard]] bool time_to_poll() noexcept;  // asked once a pass
  uint32_t handle_events(uint64_t timeout_ns) noexcept;
  void call(Watch& watch, uint32_t events) noexcept;
  bool arm() noexcept;  // true: armed, may sleep
  void note_wake_pages() const noexcept;
  void disarm() noexcept;
  [[nodiscard]] uint64_t sleep_limit_ns(uint64_t now_ns) const noexcept;
  void run_thread() noexcept;
  void park(uint64_t ns) noexcept;
  void sleep_in_epoll(uint64_t limit_ns) noexcept;
  void deliver(Ending* list) noexcept;

  Agent& agent_;
  const uint32_t index_;

  alignas(kNoSharingBytes) std::atomic<bool> locked_{false};
  alignas(kNoSharingBytes) std::atomic<uint32_t> waiting_lockers_{0};
  std::atomic<uint64_t> driven_{0};    // passes by application threads
  std::atomic<bool> sleeping_{false};  // a thread is, or is about to be, in epoll_wait
  alignas(kNoSharingBytes) std::atomic<uint32_t> park_word_{0};
  std::atomic<bool> stop_{false};

  std::atomic<bool> urgent_waits_{false};  // in queue_
  BoundedQueue<Part*, Consumers::kOne> queue_;
  Poller poller_;
  EventFd wake_;  // new work: the next thread that polls drains it and does the work
  EventFd kick_;  // the sleeper in epoll must arm again: only the sleeper drains it
  Arming arming_ = Arming::kNone;
  bool woken_ = false;  // the next pass is the first after a sleep that something ended
  bool retired_ = false;
  uint32_t passes_since_poll_ = 0;
  uint64_t next_poll_ns_ = 0;
  std::unordered_map<int, std::unique_ptr<Watch>> watches_;
  std::vector<std::unique_ptr<Watch>> dead_watches_;
  IntrusiveList<Part> in_flight_;
  uint64_t next_deadline_ns_ = UINT64_MAX;
  uint64_t next_step_ns_ = UINT64_MAX;
  Part* establishing_ = nullptr;  // through hook.next
  Part** establishing_tail_ = &establishing_;
  IntrusiveList<StagedTransfer> staged_;
  bool staged_waits_ = false;   // one of them waits for something without a wake-up
  uint64_t now_ns_ = 0;         // as last read,
  uint64_t clock_read_at_ = 0;  // in ticks
  uint64_t next_maintenance_ns_ = 0;
  std::atomic<bool> maintenance_due_{false};
  std::vector<Link*> links_;
  std::vector<Interest> interest_;  // by the backend's index
  Ending* finished_ = nullptr;
  Ending** finished_tail_ = &finished_;
  NoticePool notice_pool_;
  const WorkerPlace place_;
  std::thread thread_;
};

}  // namespace towline
