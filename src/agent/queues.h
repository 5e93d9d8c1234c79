// The event queues that an application has made of an agent, and which of them gets a notice.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "agent/event_queue.h"
#include "base/sync/rcu_value.h"

namespace towline {

class Queues {
 public:
  static constexpr std::size_t kMostQueues = 1024;
  static constexpr std::size_t kMostSubscriptions = 64;  // of a queue

  explicit Queues(EventQueue& own) noexcept : own_(own) {}

  // These throw Error.
  void add(EventQueue& queue);
  void subscribe(EventQueue& queue, uint64_t tag, uint64_t mask);
  // False: it had not.
  bool unsubscribe(EventQueue& queue, uint64_t tag, uint64_t mask);
  void remove(EventQueue& queue) noexcept;

  // Hands it to the queue that has subscribed to its tag, or to the agent's own. Takes no lock.
  void deliver(NoticeNode* node) noexcept;
  void health_changed(Peer& peer) noexcept;
  // The agent closes.
  void notify_all() noexcept;

 private:
  class Hold {
   public:
    explicit Hold(EventQueue& queue) noexcept : queue_(&queue) { queue.hold(); }
    Hold(const Hold& other) noexcept : queue_(other.queue_) { queue_->hold(); }
    Hold(Hold&& other) noexcept : queue_(std::exchange(other.queue_, nullptr)) {}
    Hold& operator=(Hold other) noexcept {
      std::swap(queue_, other.queue_);
      return *this;
    }
    ~Hold() {
      if (queue_ != nullptr) queue_->let_go();
    }
    [[nodiscard]] EventQueue* get() const noexcept { return queue_; }

   private:
    EventQueue* queue_;
  };
  struct Subscription {
    uint64_t tag;
    uint64_t mask;
    Hold queue;
  };
  using Subscriptions = std::vector<Subscription>;

  void publish();

  EventQueue& own_;
  std::mutex mutex_;  // a leaf; guards what follows, and replacing what is published
  std::vector<EventQueue*> all_;
  Subscriptions subscriptions_;
  std::atomic<bool> any_{false};
  RcuValue<Subscriptions> published_;
};

}  // namespace towline
