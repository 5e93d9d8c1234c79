// What any thread leaves for one, which sees without a lock whether there is anything.
#pragma once

#include <atomic>
#include <mutex>
#include <utility>
#include <vector>

namespace towline {

template <class T>
class Inbox {
 public:
  // Any thread; wake the reader after it. Throws std::bad_alloc, and then leaves nothing.
  void put(T item) {
    const std::lock_guard lock(mutex_);
    items_.push_back(std::move(item));
    full_.store(true, std::memory_order_release);
  }
  [[nodiscard]] bool empty() const noexcept { return !full_.load(std::memory_order_acquire); }
  // In the order of their coming.
  [[nodiscard]] std::vector<T> take() noexcept {
    const std::lock_guard lock(mutex_);
    full_.store(false, std::memory_order_relaxed);
    return std::exchange(items_, {});
  }

 private:
  std::mutex mutex_;
  std::vector<T> items_;
  std::atomic<bool> full_{false};
};

}  // namespace towline
