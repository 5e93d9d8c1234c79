// An event queue that hands each event to its waiter. The adapters for event loops use it (await.hpp, asio.hpp).
#pragma once

#include <towline/queue.hpp>

#include <cstdint>
#include <deque>
#include <mutex>
#include <unordered_map>
#include <utility>

namespace towline {
inline namespace v0 {

// Waits for one event. It may end before the event comes, after Dispatch::remove().
class Waiter {
 public:
  Waiter(const Waiter&) = delete;
  Waiter& operator=(const Waiter&) = delete;
  // On the thread that calls Dispatch::tell(). It may take the event, and may end here.
  virtual void told(Event& event) = 0;

 protected:
  Waiter() = default;
  ~Waiter() = default;
};

// Any thread may add and remove; who removes a waiter makes sure that it is not being told meanwhile.
class Dispatch {
 public:
  explicit Dispatch(const Agent& agent, uint32_t capacity = 0) : queue_(agent, {.capacity = capacity}) {}

  [[nodiscard]] const Queue& queue() const noexcept { return queue_; }

  // The number that the event is to have as its user_data: number_data().
  [[nodiscard]] uint64_t add(Waiter& waiter) {
    const std::lock_guard lock(mutex_);
    waiters_.emplace(++last_, &waiter);
    return last_;
  }
  [[nodiscard]] static void* number_data(uint64_t number) noexcept { return reinterpret_cast<void*>(number); }
  // False: its event came, or comes, first.
  bool remove(uint64_t number) noexcept {
    const std::lock_guard lock(mutex_);
    return waiters_.erase(number) != 0;
  }

  // A notice to which the queue has subscribed. False: none has come yet; the waiter gets the next one.
  [[nodiscard]] bool take_notice(Waiter& waiter, Event& event) {
    const std::lock_guard lock(mutex_);
    if (!notices_.empty()) {
      event = std::move(notices_.front());
      notices_.pop_front();
      return true;
    }
    notice_waiters_.push_back(&waiter);
    return false;
  }
  // False: it was, or is, told of one.
  bool remove_notice_waiter(const Waiter& waiter) noexcept {
    const std::lock_guard lock(mutex_);
    return std::erase(notice_waiters_, &waiter) != 0;
  }

  // Tells what has happened, to at most 64 waiters; never blocks. How many events there were; negative: a status.
  int32_t tell() {
    std::array<Event, 64> events;
    const int32_t count = queue_.next(events);
    for (int32_t i = 0; i < count; ++i) {
      Event& event = events[static_cast<size_t>(i)];
      if (Waiter* const waiter = waiter_of(event); waiter != nullptr) waiter->told(event);
    }
    return count;
  }

 private:
  Waiter* waiter_of(Event& event) {
    const std::lock_guard lock(mutex_);
    if (event.kind == TOWLINE_EVENT_NOTICE) {
      if (notice_waiters_.empty()) {
        notices_.push_back(std::move(event));
        return nullptr;
      }
      Waiter* const first = notice_waiters_.front();
      notice_waiters_.pop_front();
      return first;
    }
    const auto found = waiters_.find(reinterpret_cast<uintptr_t>(event.user_data));
    if (found == waiters_.end()) return nullptr;
    Waiter* const waiter = found->second;
    waiters_.erase(found);
    return waiter;
  }

  std::mutex mutex_;
  std::unordered_map<uint64_t, Waiter*> waiters_;
  std::deque<Waiter*> notice_waiters_;
  std::deque<Event> notices_;  // that nobody has taken; bounded by their senders' credit
  uint64_t last_ = 0;
  Queue queue_;  // ends first: its notices' credit returns
};

namespace detail {

// Throws what the event says.
inline void check(const Event& event) {
  if (is_error(event.outcome())) throw Error{event.outcome(), std::string{event.error()}};
}

}  // namespace detail

}  // namespace v0
}  // namespace towline
