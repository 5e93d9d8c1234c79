// Numbers from one thread to another, in order: one thread pushes, one pops. Never full if no more numbers exist than it
// has room for.
#pragma once

#include <atomic>
#include <bit>
#include <cstdint>
#include <memory>

#include "base/check.h"

namespace towline::tcpx {

class NumberQueue {
 public:
  explicit NumberQueue(uint32_t room)
      : mask_(std::bit_ceil(room) - 1), numbers_(std::make_unique<uint32_t[]>(mask_ + std::size_t{1})) {}

  void push(uint32_t number) noexcept {
    const uint32_t tail = tail_.load(std::memory_order_relaxed);
    TOWLINE_CHECK(tail - head_.load(std::memory_order_acquire) <= mask_);
    numbers_[tail & mask_] = number;
    tail_.store(tail + 1, std::memory_order_release);
  }
  [[nodiscard]] bool pop(uint32_t& number) noexcept {
    const uint32_t head = head_.load(std::memory_order_relaxed);
    if (head == tail_.load(std::memory_order_acquire)) return false;
    number = numbers_[head & mask_];
    head_.store(head + 1, std::memory_order_release);
    return true;
  }

 private:
  const uint32_t mask_;
  const std::unique_ptr<uint32_t[]> numbers_;
  alignas(64) std::atomic<uint32_t> head_{0};
  alignas(64) std::atomic<uint32_t> tail_{0};
};

}  // namespace towline::tcpx
