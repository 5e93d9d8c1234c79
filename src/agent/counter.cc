#include "agent/counter.h"

#include <utility>
#include <vector>

#include "agent/event_queue.h"
#include "base/error.h"

namespace towline {

void CounterTable::watch(uint64_t key, uint64_t threshold, TicketHold ticket) {
  CounterCell* cell = nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (ended_ != Status::kOk) fail(ended_, "the agent has been closed");
    cell = find(key);
    if (cell == nullptr) fail(Status::kStale, "the counter has been destroyed");
    watches_.emplace(key, Watch{threshold, std::move(ticket)});
    cell->watched.fetch_add(1, std::memory_order_seq_cst);
  }
  tell_reached(key, *cell);
}

void CounterTable::tell_reached(uint64_t key, CounterCell& cell) noexcept {
  for (;;) {  // one at a time, so that nothing is allocated
    TicketHold ticket;
    {
      const std::lock_guard lock(mutex_);
      if (find(key) != &cell) return;
      const uint64_t value = cell.value.load(std::memory_order_seq_cst);
      auto [at, end] = watches_.equal_range(key);
      while (at != end && at->second.threshold > value) ++at;
      if (at == end) return;
      ticket = std::move(at->second.ticket);
      ticket->value = value;
      watches_.erase(at);
      cell.watched.fetch_sub(1, std::memory_order_relaxed);
    }
    EventQueue::tell(std::move(ticket), Status::kOk);
  }
}

void CounterTable::forget(uint64_t key, const EventQueue& queue, const void* user_data) noexcept {
  for (;;) {
    TicketHold dropped;
    const std::lock_guard lock(mutex_);
    auto [at, end] = watches_.equal_range(key);
    while (at != end && (at->second.ticket->queue != &queue || at->second.ticket->user_data != user_data))
      ++at;
    if (at == end) return;
    dropped = std::move(at->second.ticket);
    watches_.erase(at);
    if (CounterCell* const cell = find(key); cell != nullptr)
      cell->watched.fetch_sub(1, std::memory_order_relaxed);
  }
}

void CounterTable::destroy(uint64_t key) noexcept {
  std::multimap<uint64_t, Watch> gone;
  {
    const std::lock_guard lock(mutex_);
    CounterCell* const cell = find(key);
    if (cell == nullptr) return;
    auto [at, end] = watches_.equal_range(key);
    while (at != end) gone.insert(watches_.extract(at++));
    cell->watched.store(0, std::memory_order_relaxed);
    cells_.free(Handle::from_u64(key));
  }
  for (auto& [its_key, watch] : gone)
    EventQueue::tell(std::move(watch.ticket), Status::kStale, "the counter has been destroyed");
}

void CounterTable::end(Status why) noexcept {
  std::multimap<uint64_t, Watch> all;
  {
    const std::lock_guard lock(mutex_);
    ended_ = why;
    all.swap(watches_);
  }
  for (auto& [key, watch] : all) EventQueue::tell(std::move(watch.ticket), why);
}

}  // namespace towline
