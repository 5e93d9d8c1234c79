#include "agent/event_queue.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "agent/agent.h"
#include "base/error.h"
#include "base/os/futex.h"
#include "base/sync/wake_path.h"

namespace towline {

namespace {
constexpr std::size_t kMostSpares = 256;
}

void TicketGivesBack::operator()(Ticket* ticket) const noexcept { ticket->queue->let_go_of(ticket); }

EventQueue::EventQueue(Agent& agent, std::size_t capacity, void* user_data, bool own)
    : agent_(agent), own_(own), user_data_(user_data), capacity_(capacity), completions_(capacity) {}

EventQueue::~EventQueue() {
  for (Ticket* list : {first_told_, spare_})
    while (list != nullptr) delete std::exchange(list, list->next);
}

// ---- waking

TOWLINE_WAKE_PATH void EventQueue::notify() noexcept {
  word_.fetch_add(1, std::memory_order_seq_cst);
  if (waiters_.load(std::memory_order_seq_cst) != 0) futex_wake_all(word_);
  if (event_fd_used_.load(std::memory_order_acquire) &&
      !signaled_.exchange(true, std::memory_order_acq_rel)) {
    event_fd_.signal();
  }
}

int EventQueue::event_fd() noexcept {
  event_fd_used_.store(true, std::memory_order_seq_cst);
  if (there() || agent_.closed()) notify();
  return event_fd_.fd();
}

TOWLINE_WAKE_PATH void EventQueue::settle() noexcept {
  if (!event_fd_used_.load(std::memory_order_relaxed) || there() || agent_.closed()) return;
  event_fd_.drain();
  signaled_.store(false, std::memory_order_seq_cst);
  if (there() || agent_.closed()) notify();
}

// ---- ends of posts

bool EventQueue::reserve_completion() noexcept {
  if (reserved_.fetch_add(1, std::memory_order_relaxed) >= capacity_) {
    free_place();
    return false;
  }
  hold();
  return true;
}

void EventQueue::release_completion() noexcept {
  free_place();
  let_go();
}

void EventQueue::push_completion(const towline_completion_t& completion, std::string why) noexcept {
  if (!why.empty()) {
    if (auto* const ticket = new (std::nothrow) Ticket; ticket != nullptr) {
      ticket->queue = this;  // the completion's place and hold become the ticket's
      ticket->kind = TOWLINE_EVENT_DONE;
      ticket->status = static_cast<Status>(completion.status);
      ticket->user_data = completion.user_data;
      ticket->value = completion.bytes;
      ticket->why = std::move(why);
      return push_told(ticket);
    }
  }
  completions_.push(completion);  // its place is reserved
  notify();
  if (closed_.load(std::memory_order_seq_cst)) throw_away();
  let_go();
}

size_t EventQueue::pull_completions(towline_completion_t* completions, size_t capacity) noexcept {
  size_t count = 0;
  while (count < capacity) {
    const auto completion = completions_.try_pop();
    if (!completion) break;
    completions[count++] = *completion;
    free_place();
  }
  settle();
  return count;
}

// ---- tickets

TicketHold EventQueue::ticket(uint32_t kind, void* user_data) {
  if (reserved_.fetch_add(1, std::memory_order_relaxed) >= capacity_) {
    free_place();
    fail(Status::kAgain, "the queue has room for {} events, and as many are to come or wait to be taken",
         capacity_);
  }
  Ticket* ticket = nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (spare_ != nullptr) {
      ticket = std::exchange(spare_, spare_->next);
      --spares_;
    }
  }
  if (ticket == nullptr) ticket = new (std::nothrow) Ticket;
  if (ticket == nullptr) {
    free_place();
    throw std::bad_alloc();
  }
  hold();
  ticket->queue = this;
  ticket->kind = kind;
  ticket->user_data = user_data;
  return TicketHold(ticket);
}

void EventQueue::tell(TicketHold held, Status status, std::string why) noexcept {
  Ticket* const ticket = held.release();
  ticket->status = status;
  ticket->why = std::move(why);
  ticket->queue->push_told(ticket);
}

// Once it is in the list, another thread may take it and end the queue with it.
void EventQueue::push_told(Ticket* ticket) noexcept {
  hold();
  ticket->next = nullptr;
  {
    const std::lock_guard lock(mutex_);
    *last_told_ = ticket;
    last_told_ = &ticket->next;
    told_count_.fetch_add(1, std::memory_order_release);
  }
  notify();
  if (closed_.load(std::memory_order_seq_cst)) throw_away();
  let_go();
}

Ticket* EventQueue::take_told() noexcept {
  if (told_count_.load(std::memory_order_acquire) == 0) return nullptr;
  const std::lock_guard lock(mutex_);
  Ticket* const ticket = first_told_;
  if (ticket == nullptr) return nullptr;
  first_told_ = ticket->next;
  if (first_told_ == nullptr) last_told_ = &first_told_;
  told_count_.fetch_sub(1, std::memory_order_release);
  return ticket;
}

void EventQueue::let_go_of(Ticket* ticket) noexcept {
  if (ticket->counted) free_place();
  ticket->peer = PeerHold();
  ticket->why.clear();
  ticket->value = 0;
  ticket->counted = true;
  {
    const std::lock_guard lock(mutex_);
    if (spares_ < kMostSpares) {
      ticket->next = std::exchange(spare_, ticket);
      ++spares_;
      ticket = nullptr;
    }
  }
  delete ticket;
  let_go();
}

// ---- notices and peers

TOWLINE_WAKE_PATH void EventQueue::push(NoticeNode* node) noexcept {
  inbox_.push(node);
  notify();
  if (closed_.load(std::memory_order_seq_cst)) throw_away();
}

// At most one event of each peer waits.
void EventQueue::health_changed(Peer& peer) noexcept {
  if (!watches_peers_.load(std::memory_order_acquire)) return;
  {
    const std::lock_guard lock(mutex_);
    for (const Ticket* waiting = first_told_; waiting != nullptr; waiting = waiting->next)
      if (waiting->kind == TOWLINE_EVENT_PEER_HEALTH && waiting->peer.get() == &peer) return;
  }
  auto* const ticket = new (std::nothrow) Ticket;
  if (ticket == nullptr) return;  // its next change is told
  hold();
  ticket->queue = this;
  ticket->kind = TOWLINE_EVENT_PEER_HEALTH;
  ticket->user_data = user_data_;
  ticket->peer = PeerHold(&peer);
  ticket->counted = false;
  push_told(ticket);
}

// ---- the application's side

void EventQueue::throw_away() noexcept {
  while (completions_.try_pop()) free_place();
  while (Ticket* const ticket = take_told()) let_go_of(ticket);
  while (NoticeNode* const node = inbox_.pull()) agent_.give_back_notice(node);
}

void EventQueue::close() noexcept {
  closed_.store(true, std::memory_order_seq_cst);
  throw_away();
  let_go();
}

bool EventQueue::take_one(towline_event_t& event) noexcept {
  event = {};
  uint32_t turn = turns_.fetch_add(1, std::memory_order_relaxed);
  for (uint32_t sort = 0; sort < 3; ++sort) {
    switch (turn++ % 3) {
      case 0:
        if (const auto done = completions_.try_pop()) {
          free_place();
          event.kind = TOWLINE_EVENT_DONE;
          event.status = done->status;
          event.user_data = done->user_data;
          event.value = done->bytes;
          event.transfer = done->transfer;
          return true;
        }
        break;
      case 1:
        if (Ticket* const ticket = take_told(); ticket != nullptr) {
          const bool health = ticket->kind == TOWLINE_EVENT_PEER_HEALTH;
          event.kind = ticket->kind;
          event.status = static_cast<int32_t>(ticket->status);
          event.user_data = ticket->user_data;
          event.value = health ? ticket->peer->health() : ticket->value;
          event.held = ticket;
          return true;
        }
        break;
      default:
        if (NoticeNode* const node = inbox_.pull(); node != nullptr) {
          event.kind = TOWLINE_EVENT_NOTICE;
          event.user_data = user_data_;
          event.tag = node->tag;
          event.data = node->data();
          event.bytes = node->bytes;
          event.held = node;
          return true;
        }
    }
  }
  return false;
}

size_t EventQueue::next(unsigned char* events, size_t capacity, size_t event_bytes) noexcept {
  size_t count = 0;
  towline_event_t event;
  while (count < capacity && take_one(event)) {
    unsigned char* const to = events + count++ * event_bytes;
    if (event_bytes > sizeof event) std::memset(to, 0, event_bytes);
    std::memcpy(to, &event, std::min(event_bytes, sizeof event));
  }
  settle();
  return count;
}

}  // namespace towline
