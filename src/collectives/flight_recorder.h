// Records the last operations of a communicator, to find out later which one hung.
#pragma once

#include <sched.h>

#include <atomic>
#include <bit>
#include <cstdint>
#include <string>
#include <vector>

#include "base/tick_clock.h"
#include "towline/collectives.h"
#include "towline/status.h"

namespace towline::collectives {

// Any thread. A record takes a lock for a few stores; its end takes none.
class FlightRecorder {
 public:
  explicit FlightRecorder(uint32_t capacity)
      : capacity_(capacity), entries_(capacity == 0 ? 0 : std::bit_ceil(capacity)) {}

  // Returns the number of the record for later calls; 0 if recording is off.
  uint64_t issue(const towline_collective_t* call, uint32_t op, uint64_t op_id,
                 uint64_t timeout_ns) noexcept {
    return issue_at(now(), call, op, op_id, timeout_ns);
  }
  void start(uint64_t record) noexcept;
  void end(uint64_t record, Status status) noexcept { end_at(now(), record, status); }

  // The same with a time that the caller has: now(), or ticks() where by_ticks().
  uint64_t now() const noexcept { return clock_.now(); }
  bool by_ticks() const noexcept { return clock_.by_ticks(); }
  uint64_t issue_at(uint64_t when, const towline_collective_t* call, uint32_t op, uint64_t op_id,
                    uint64_t timeout_ns, bool started = false) noexcept;
  void end_at(uint64_t when, uint64_t record, Status status) noexcept;
  void reset() noexcept;

  // JSON in the format of torch's flight recorder. Times are those of the wall clock.
  std::string dump(const std::string& name, int rank, int size) const;

 private:
  // What the end writes is atomic, and the rest is guarded by the lock. The outcome names its record, since an operation
  // may end while its entry is given to a later one.
  struct Entry {
    std::atomic<uint64_t> record = 0;   // from 1; 0: never used
    std::atomic<uint64_t> outcome = 0;  // outcome_of() when it has ended
    std::atomic<uint64_t> ended = 0;    // by clock_; 0: not yet
    uint64_t created = 0;
    uint64_t started = 0;
    uint64_t op_id = 0;
    uint64_t sequence = 0;  // counted among collectives, or among messages
    uint64_t count = 0;
    uint64_t timeout_ns = 0;
    uint8_t op = 0;
    uint8_t datatype = 0;
    uint8_t reduction = 0;
    int32_t root = 0;
  };
  static_assert(sizeof(Entry) == 80);
  // A copy of one, as the dump tells it.
  struct Told {
    uint64_t record, op_id, sequence, count, timeout_ns;
    uint64_t created, started, ended;
    uint32_t op, datatype, reduction;
    int32_t root;
    Status status;
  };
  // The records within the capacity, in any order.
  std::vector<Told> told() const;
  static uint64_t outcome_of(uint64_t record, Status status) noexcept {
    return record << 32 | static_cast<uint32_t>(status);
  }
  class Guard {
   public:
    explicit Guard(std::atomic_flag& flag) noexcept : flag_(flag) {
      while (flag_.test_and_set(std::memory_order_acquire)) sched_yield();
    }
    ~Guard() { flag_.clear(std::memory_order_release); }

   private:
    std::atomic_flag& flag_;
  };

  Entry& place_of(uint64_t record) noexcept { return entries_[record & (entries_.size() - 1)]; }
  Entry* find(uint64_t record) noexcept {
    if (record == 0) return nullptr;
    Entry& entry = place_of(record);
    return entry.record.load(std::memory_order_relaxed) == record ? &entry : nullptr;
  }

  mutable std::atomic_flag lock_;
  const TickClock clock_;
  const uint64_t capacity_;
  std::vector<Entry> entries_;  // a power of two, of which the last `capacity_` are told
  uint64_t recorded_ = 0;
  uint64_t collectives_ = 0;
  uint64_t messages_ = 0;
};

}  // namespace towline::collectives
