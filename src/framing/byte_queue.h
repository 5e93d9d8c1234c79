// A bounded first-in, first-out queue of bytes in memory allocated once: small frames that wait for their
// lane.
#pragma once

#include <sys/uio.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>

#include "base/check.h"
#include "base/copy/copy.h"

namespace towline::framing {

class ByteQueue {
 public:
  explicit ByteQueue(std::size_t at_least)
      : capacity_(std::bit_ceil(at_least)), data_(std::make_unique_for_overwrite<uint8_t[]>(capacity_)) {}

  [[nodiscard]] std::size_t size() const noexcept { return static_cast<std::size_t>(end_ - begin_); }
  [[nodiscard]] bool empty() const noexcept { return begin_ == end_; }
  [[nodiscard]] std::size_t capacity() const noexcept { return capacity_; }
  [[nodiscard]] std::size_t room() const noexcept { return capacity_ - size(); }

  void push(const void* data, std::size_t bytes) noexcept {
    TOWLINE_DCHECK(bytes <= room(), "{} bytes, room for {}", bytes, room());
    const auto* from = static_cast<const uint8_t*>(data);
    const std::size_t at = end_ & (capacity_ - 1);
    const std::size_t first = std::min(bytes, capacity_ - at);
    copy_bytes(data_.get() + at, from, first);
    copy_bytes(data_.get(), from + first, bytes - first);
    end_ += bytes;
  }

  // The first `bytes` (at most size()) as one or two pieces; returns how many.
  std::size_t front(std::size_t bytes, iovec out[2]) const noexcept {
    if (bytes == 0) return 0;
    const std::size_t at = begin_ & (capacity_ - 1);
    const std::size_t first = std::min(bytes, capacity_ - at);
    out[0] = {data_.get() + at, first};
    if (first == bytes) return 1;
    out[1] = {data_.get(), bytes - first};
    return 2;
  }

  void pop(std::size_t bytes) noexcept {
    TOWLINE_DCHECK(bytes <= size(), "{} bytes of {}", bytes, size());
    begin_ += bytes;
  }

  void clear() noexcept { begin_ = end_; }

 private:
  std::size_t capacity_;
  std::unique_ptr<uint8_t[]> data_;
  uint64_t begin_ = 0;
  uint64_t end_ = 0;
};

// A bounded queue of values in memory allocated once.
template <class T>
class BoundedQueue {
 public:
  explicit BoundedQueue(std::size_t at_least)
      : mask_(std::bit_ceil(at_least) - 1), items_(std::make_unique<T[]>(mask_ + 1)) {}

  [[nodiscard]] std::size_t size() const noexcept { return static_cast<std::size_t>(end_ - begin_); }
  [[nodiscard]] bool empty() const noexcept { return begin_ == end_; }
  [[nodiscard]] bool full() const noexcept { return size() > mask_; }
  [[nodiscard]] T& front() noexcept { return items_[begin_ & mask_]; }
  [[nodiscard]] const T& front() const noexcept { return items_[begin_ & mask_]; }
  void push(const T& item) noexcept {
    TOWLINE_DCHECK(!full(), "queue of {} is full", mask_ + 1);
    items_[end_++ & mask_] = item;
  }
  void pop() noexcept { ++begin_; }
  void push_front(const T& item) noexcept {
    TOWLINE_DCHECK(!full(), "queue of {} is full", mask_ + 1);
    items_[--begin_ & mask_] = item;
  }
  // Item `i`, counted from the front.
  [[nodiscard]] const T& operator[](std::size_t i) const noexcept { return items_[(begin_ + i) & mask_]; }
  // Item `i` becomes the front; those before it follow in their order.
  void bring_forward(std::size_t i) noexcept {
    const T item = items_[(begin_ + i) & mask_];
    for (; i != 0; --i) items_[(begin_ + i) & mask_] = items_[(begin_ + i - 1) & mask_];
    items_[begin_ & mask_] = item;
  }
  void clear() noexcept { begin_ = end_; }

 private:
  uint64_t mask_;
  std::unique_ptr<T[]> items_;
  uint64_t begin_ = 0;
  uint64_t end_ = 0;
};

}  // namespace towline::framing
