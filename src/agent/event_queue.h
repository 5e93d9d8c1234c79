// Events for applications: ends of posts, notices, and tickets that they asked for. Threads sleep until there is an
// event, and a descriptor is readable while there is one. Every agent has one queue; applications make others (queue.h).
//
// Nothing is lost for want of room: each request for an event reserves its place first. Notices are bounded by their
// senders' credit. A queue lives as long as its handle, or an event that will come to it, needs it; one that the
// application has dropped takes events and throws them away.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>

#include "agent/inbox.h"
#include "agent/peer.h"
#include "agent/ticket.h"
#include "base/sync/mpsc_queue.h"
#include "base/sync/wake.h"
#include "towline/queue.h"
#include "towline/status.h"

namespace towline {

class Agent;
class EventQueue;

// An event that was asked for, from the call until the application releases it. It holds its queue.
struct Ticket {
  Ticket* next = nullptr;
  EventQueue* queue = nullptr;
  uint32_t kind = 0;
  Status status = Status::kOk;
  void* user_data = nullptr;
  uint64_t value = 0;
  PeerHold peer;
  std::string why;      // for errors
  bool counted = true;  // it has a reserved place
};

// Any thread.
class EventQueue {
 public:
  static constexpr std::size_t kOwnCapacity = 1 << 16;
  static constexpr std::size_t kUsualCapacity = 1 << 14;
  static constexpr std::size_t kMostCapacity = 1 << 20;

  // For an agent's own one, which nothing but the agent ends.
  explicit EventQueue(Agent& agent) : EventQueue(agent, kOwnCapacity, nullptr, true) {}
  // Its handle's reference is the caller's.
  static EventQueue* create(Agent& agent, std::size_t capacity, void* user_data) {
    return new EventQueue(agent, capacity, user_data, false);
  }
  EventQueue(const EventQueue&) = delete;
  EventQueue& operator=(const EventQueue&) = delete;

  void hold() noexcept {
    if (!own_) references_.fetch_add(1, std::memory_order_relaxed);
  }
  void let_go() noexcept {
    if (!own_ && references_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }
  // The application has dropped it: what waits and what comes is thrown away.
  void close() noexcept;

  // Something can be taken, or the agent closes.
  void notify() noexcept;
  [[nodiscard]] bool there() const noexcept {
    return !inbox_.looks_empty() || !completions_.looks_empty() ||
           told_count_.load(std::memory_order_acquire) != 0;
  }
  // Readable while something is there. From the first call on it is kept so.
  [[nodiscard]] int event_fd() noexcept;
  // After taking: the descriptor is no longer readable if nothing is left.
  void settle() noexcept;
  // For waiting (waiter.h): grows with each notify().
  [[nodiscard]] std::atomic<uint32_t>& word() noexcept { return word_; }
  [[nodiscard]] std::atomic<uint32_t>& waiters() noexcept { return waiters_; }
  [[nodiscard]] Inbox& inbox() noexcept { return inbox_; }
  [[nodiscard]] Agent& agent() const noexcept { return agent_; }

  // ---- ends of posts. Reserved at the post, filled at its end, and taken by the application.

  // False: there are too many. A success holds the queue until one of the two below.
  [[nodiscard]] bool reserve_completion() noexcept;
  void release_completion() noexcept;
  // `why`: for an error; empty: nothing more is known.
  void push_completion(const towline_completion_t& completion, std::string why = {}) noexcept;
  size_t pull_completions(towline_completion_t* completions, size_t capacity) noexcept;
  [[nodiscard]] bool no_completions() const noexcept { return completions_.looks_empty(); }

  // ---- what else was asked for. Throws Error(kAgain): too many.

  [[nodiscard]] TicketHold ticket(uint32_t kind, void* user_data);
  static void tell(TicketHold ticket, Status status, std::string why = {}) noexcept;

  // ---- notices and peers

  // Takes the node.
  void push(NoticeNode* node) noexcept;
  // Is told of every change of a peer's health; what has not been taken yet is told as it is by then.
  void watch_peers() noexcept { watches_peers_.store(true, std::memory_order_release); }
  void health_changed(Peer& peer) noexcept;

  // ---- the application's side

  size_t next(unsigned char* events, size_t capacity, size_t event_bytes) noexcept;

 private:
  friend struct TicketGivesBack;
  EventQueue(Agent& agent, std::size_t capacity, void* user_data, bool own);
  ~EventQueue();
  friend class Agent;  // whose own one it destroys

  void push_told(Ticket* ticket) noexcept;
  void let_go_of(Ticket* ticket) noexcept;
  [[nodiscard]] Ticket* take_told() noexcept;
  void free_place() noexcept { reserved_.fetch_sub(1, std::memory_order_relaxed); }
  void throw_away() noexcept;
  [[nodiscard]] bool take_one(towline_event_t& event) noexcept;

  Agent& agent_;
  const bool own_;
  void* const user_data_;
  const std::size_t capacity_;
  Inbox inbox_;
  MpmcQueue<towline_completion_t> completions_;
  std::atomic<uint64_t> reserved_{0};
  std::atomic<uint64_t> references_{1};
  std::atomic<bool> closed_{false};
  std::atomic<bool> watches_peers_{false};

  std::mutex mutex_;  // a leaf; guards what follows
  Ticket* first_told_ = nullptr;
  Ticket** last_told_ = &first_told_;
  std::atomic<uint64_t> told_count_{0};
  Ticket* spare_ = nullptr;  // so that waiting again and again allocates nothing
  std::size_t spares_ = 0;
  std::atomic<uint32_t> turns_{0};  // between the sorts of events

  EventFd event_fd_;
  std::atomic<bool> event_fd_used_{false};
  std::atomic<bool> signaled_{false};
  std::atomic<uint32_t> word_{0};
  std::atomic<uint32_t> waiters_{0};
};

}  // namespace towline
