#include "agent/queues.h"

#include <algorithm>

#include "base/error.h"
#include "base/sync/wake_path.h"

namespace towline {

void Queues::add(EventQueue& queue) {
  const std::lock_guard lock(mutex_);
  if (all_.size() >= kMostQueues) fail(Status::kLimitExceeded, "an agent has at most {} queues", kMostQueues);
  all_.push_back(&queue);
}

void Queues::publish() {
  published_.set(subscriptions_);
  any_.store(!subscriptions_.empty(), std::memory_order_release);
}

void Queues::subscribe(EventQueue& queue, uint64_t tag, uint64_t mask) {
  const std::lock_guard lock(mutex_);
  const auto has = std::count_if(subscriptions_.begin(), subscriptions_.end(),
                                 [&](const Subscription& entry) { return entry.queue.get() == &queue; });
  if (static_cast<std::size_t>(has) >= kMostSubscriptions)
    fail(Status::kLimitExceeded, "a queue subscribes to at most {} tags", kMostSubscriptions);
  subscriptions_.push_back({tag, mask, Hold(queue)});
  publish();
}

bool Queues::unsubscribe(EventQueue& queue, uint64_t tag, uint64_t mask) {
  const std::lock_guard lock(mutex_);
  const auto found =
      std::find_if(subscriptions_.begin(), subscriptions_.end(), [&](const Subscription& entry) {
        return entry.queue.get() == &queue && entry.tag == tag && entry.mask == mask;
      });
  if (found == subscriptions_.end()) return false;
  subscriptions_.erase(found);
  publish();
  return true;
}

// If publish() gets no memory, the subscriptions stay published. The queue is closed, and drops the notices that come.
void Queues::remove(EventQueue& queue) noexcept {
  const std::lock_guard lock(mutex_);
  std::erase(all_, &queue);
  const auto removed =
      std::erase_if(subscriptions_, [&](const Subscription& entry) { return entry.queue.get() == &queue; });
  if (removed == 0) return;
  try {
    publish();
  } catch (const std::bad_alloc&) {
  }
}

TOWLINE_WAKE_PATH void Queues::deliver(NoticeNode* node) noexcept {
  if (!any_.load(std::memory_order_acquire)) return own_.push(node);
  try {
    const RcuValue<Subscriptions>::Look look(published_);
    if (look) {
      for (const Subscription& entry : *look)
        if (((node->tag ^ entry.tag) & entry.mask) == 0) return entry.queue.get()->push(node);
    }
  } catch (const std::bad_alloc&) {  // a thread's first Look allocates
  }
  own_.push(node);
}

void Queues::health_changed(Peer& peer) noexcept {
  const std::lock_guard lock(mutex_);
  for (EventQueue* const queue : all_) queue->health_changed(peer);
}

void Queues::notify_all() noexcept {
  own_.notify();
  const std::lock_guard lock(mutex_);
  for (EventQueue* const queue : all_) queue->notify();
}

}  // namespace towline
