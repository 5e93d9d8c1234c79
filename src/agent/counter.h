// Counters: 64-bit numbers of this agent that peers add to by key and any thread can wait on.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/containers/slab.h"
#include "base/os/futex.h"
#include "towline/status.h"

namespace towline {

struct CounterCell {
  std::atomic<uint64_t> value{0};
  std::atomic<uint32_t> changes{0};  // futex word
  std::atomic<uint32_t> waiters{0};
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
  void destroy(uint64_t key) noexcept { cells_.free(Handle::from_u64(key)); }
  [[nodiscard]] CounterCell* find(uint64_t key) const noexcept { return cells_.find(Handle::from_u64(key)); }

  // False if no counter has that key. Any thread.
  bool add(uint64_t key, uint64_t amount) noexcept {
    CounterCell* cell = find(key);
    if (cell == nullptr) return false;
    cell->value.fetch_add(amount, std::memory_order_release);
    cell->changes.fetch_add(1, std::memory_order_seq_cst);
    if (cell->waiters.load(std::memory_order_seq_cst) != 0) futex_wake_all(cell->changes);
    return true;
  }

 private:
  static constexpr uint32_t kMostCounters = 1 << 20;
  Slab<CounterCell> cells_;
};

}  // namespace towline
