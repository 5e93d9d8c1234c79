// Bounded lock-free queues between threads (Vyukov 2010): each cell has a sequence number that says whether a
// producer or a consumer may use it, so they meet only on that cell.
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <type_traits>
#include <utility>

#include "base/check.h"
#include "base/sync/spin.h"

namespace towline {

enum class Consumers { kOne, kMany };

// Any number of producers. No allocation after construction. T moves without throwing. FIFO per producer; not
// across processes. A producer that is stopped in the middle of a push delays later pushes: try_pop then
// finds nothing, but never blocks.
template <class T, Consumers kConsumers>
class BoundedQueue {
  static_assert(std::is_nothrow_move_constructible_v<T> && std::is_nothrow_destructible_v<T>);

 public:
  // capacity is rounded up to a power of two, 2 at least.
  explicit BoundedQueue(std::size_t capacity)
      : mask_(std::bit_ceil(capacity < 2 ? std::size_t{2} : capacity) - 1),
        cells_(std::make_unique<Cell[]>(mask_ + 1)) {
    for (std::size_t i = 0; i <= mask_; ++i) cells_[i].sequence.store(i, std::memory_order_relaxed);
  }

  BoundedQueue(const BoundedQueue&) = delete;
  BoundedQueue& operator=(const BoundedQueue&) = delete;
  ~BoundedQueue() {
    while (try_pop()) {
    }
  }

  // False when full; value is then left as it was. Any thread.
  [[nodiscard]] bool try_push(T&& value) noexcept {
    Cell* cell = claim_for_push();
    if (cell == nullptr) return false;
    ::new (static_cast<void*>(cell->storage)) T(std::move(value));
    // The cell's sequence still equals the claimed position: no other thread may change it now.
    cell->sequence.store(cell->sequence.load(std::memory_order_relaxed) + 1, std::memory_order_release);
    return true;
  }
  [[nodiscard]] bool try_push(const T& value) noexcept requires std::is_nothrow_copy_constructible_v<T> {
    return try_push(T(value));
  }
  // For a producer that knows of room: what was there has been taken, but a consumer that is stopped in the middle of
  // that keeps its cell, though others have gone past it. Waits for that one.
  void push(T value) noexcept {
    while (!try_push(std::move(value))) sched_yield();
  }

  // Empty optional when there is nothing. With Consumers::kOne, one thread at a time.
  std::optional<T> try_pop() noexcept {
    uint64_t position = 0;
    Cell* cell = claim_for_pop(position);
    if (cell == nullptr) return std::nullopt;
    T* value = std::launder(reinterpret_cast<T*>(cell->storage));
    std::optional<T> result(std::move(*value));
    value->~T();
    cell->sequence.store(position + mask_ + 1, std::memory_order_release);
    return result;
  }

  // A hint: true may be outdated when it returns.
  bool looks_empty() const noexcept {
    const uint64_t position = pop_position_.load(std::memory_order_relaxed);
    return cells_[position & mask_].sequence.load(std::memory_order_acquire) != position + 1;
  }

  std::size_t capacity() const noexcept { return mask_ + 1; }

 private:
  struct Cell {
    std::atomic<uint64_t> sequence;
    alignas(T) std::byte storage[sizeof(T)];
  };

  Cell* claim_for_push() noexcept {
    uint64_t position = push_position_.load(std::memory_order_relaxed);
    while (true) {
      Cell& cell = cells_[position & mask_];
      const auto ahead = static_cast<int64_t>(cell.sequence.load(std::memory_order_acquire) - position);
      if (ahead < 0) return nullptr;  // still holds the value of one round ago: full
      if (ahead > 0) {                // another producer took it
        position = push_position_.load(std::memory_order_relaxed);
      } else if (push_position_.compare_exchange_weak(position, position + 1, std::memory_order_relaxed)) {
        return &cell;
      }
    }
  }

  Cell* claim_for_pop(uint64_t& position) noexcept {
    position = pop_position_.load(std::memory_order_relaxed);
    while (true) {
      Cell& cell = cells_[position & mask_];
      const auto ahead = static_cast<int64_t>(cell.sequence.load(std::memory_order_acquire) - (position + 1));
      if (ahead < 0) return nullptr;
      if constexpr (kConsumers == Consumers::kOne) {
        TOWLINE_DCHECK(ahead == 0, "two threads pop from a queue with one consumer");
        pop_position_.store(position + 1, std::memory_order_relaxed);
        return &cell;
      } else if (ahead > 0) {
        position = pop_position_.load(std::memory_order_relaxed);
      } else if (pop_position_.compare_exchange_weak(position, position + 1, std::memory_order_relaxed)) {
        return &cell;
      }
    }
  }

  const std::size_t mask_;
  const std::unique_ptr<Cell[]> cells_;
  alignas(kNoSharingBytes) std::atomic<uint64_t> push_position_{0};
  alignas(kNoSharingBytes) std::atomic<uint64_t> pop_position_{0};
};

template <class T>
using MpscQueue = BoundedQueue<T, Consumers::kOne>;

template <class T>
using MpmcQueue = BoundedQueue<T, Consumers::kMany>;

}  // namespace towline
