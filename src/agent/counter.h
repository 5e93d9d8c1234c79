// Counters: 64-bit numbers of this agent that peers add to by key and any thread can wait on.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>

#include "agent/ticket.h"
#include "base/containers/slab.h"
#include "base/os/futex.h"
#include "towline/status.h"

namespace towline {

class EventQueue;

struct CounterCell {
  std::atomic<uint64_t> value{0};
  std::atomic<uint32_t> changes{0};  // futex word
  std::atomic<uint32_t> waiters{0};
  std::atomic<uint32_t> watched{0};  // by tickets
};

class CounterTable {
 public:
  CounterTable() : cells_(kMostCounters) {}

  // 0 when all are taken.
  uint64_t create(uint64_t initial) {
    const auto made = cells_.allocate();
    if (made.handle.is_none()) return 0;
    made.object->value.store(initial, std::memory_order_relaxed);
    return made.handle.to_u64();
  }
  void destroy(uint64_t key) noexcept;
  // Tells the ticket once the value is at least `threshold`. Throws Error(kStale): there is no such counter.
  void watch(uint64_t key, uint64_t threshold, TicketHold ticket);
  // Drops those of this queue and user_data.
  void forget(uint64_t key, const EventQueue& queue, const void* user_data) noexcept;
  // Tells all that waits, and what comes.
  void end(Status why) noexcept;
  [[nodiscard]] CounterCell* find(uint64_t key) const noexcept { return cells_.find(Handle::from_u64(key)); }

  // False if no counter has that key. Any thread.
  bool add(uint64_t key, uint64_t amount) noexcept {
    CounterCell* cell = find(key);
    if (cell == nullptr) return false;
    cell->value.fetch_add(amount, std::memory_order_seq_cst);
    cell->changes.fetch_add(1, std::memory_order_seq_cst);
    if (cell->waiters.load(std::memory_order_seq_cst) != 0) futex_wake_all(cell->changes);
    if (cell->watched.load(std::memory_order_seq_cst) != 0) tell_reached(key, *cell);
    return true;
  }

 private:
  static constexpr uint32_t kMostCounters = 1 << 20;
  struct Watch {
    uint64_t threshold;
    TicketHold ticket;
  };
  void tell_reached(uint64_t key, CounterCell& cell) noexcept;

  Slab<CounterCell> cells_;
  std::mutex mutex_;  // a leaf; guards what follows
  std::multimap<uint64_t, Watch> watches_;
  Status ended_ = Status::kOk;
};

}  // namespace towline
