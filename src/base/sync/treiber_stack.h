// An intrusive lock-free stack that is only ever emptied whole, which is why it has no ABA problem.
#pragma once

#include <atomic>

namespace towline {

// T has a link: struct Work { Work* next; }; TreiberStack<Work, &Work::next>. Owns nothing; allocates
// nothing. The link belongs to the stack from push() until the node comes out of a pop_all().
template <class T, T* T::*kNext>
class TreiberStack {
 public:
  TreiberStack() noexcept = default;
  TreiberStack(const TreiberStack&) = delete;
  TreiberStack& operator=(const TreiberStack&) = delete;

  // Any thread. True if the stack was empty: the first pusher wakes the consumer. Sequentially consistent, as
  // looks_empty() is: a pusher that then looks whether the consumer sleeps, and a consumer that says so and then looks
  // for nodes, can't miss each other.
  bool push(T* node) noexcept {
    T* top = top_.load(std::memory_order_relaxed);
    do {
      node->*kNext = top;
    } while (!top_.compare_exchange_weak(top, node, std::memory_order_seq_cst, std::memory_order_relaxed));
    return top == nullptr;
  }

  // Any thread. All nodes, linked newest first; null when there are none.
  T* pop_all() noexcept {
    if (top_.load(std::memory_order_relaxed) == nullptr) return nullptr;
    return top_.exchange(nullptr, std::memory_order_acquire);
  }

  // All nodes, linked in the order they were pushed.
  T* pop_all_in_order() noexcept {
    T* reversed = nullptr;
    for (T* node = pop_all(); node != nullptr;) {
      T* next = node->*kNext;
      node->*kNext = reversed;
      reversed = node;
      node = next;
    }
    return reversed;
  }

  bool looks_empty() const noexcept { return top_.load(std::memory_order_seq_cst) == nullptr; }

 private:
  std::atomic<T*> top_{nullptr};
};

}  // namespace towline
