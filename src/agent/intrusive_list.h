// A doubly linked list through its members. Adding and removing never allocate.
#pragma once

namespace towline {

template <class T>
struct IntrusiveHook {
  T* previous = nullptr;
  T* next = nullptr;
  bool linked = false;
};

// T has a member `IntrusiveHook<T> hook`.
template <class T>
class IntrusiveList {
 public:
  void push(T& item) noexcept {
    item.hook = {last_, nullptr, true};
    (last_ == nullptr ? first_ : last_->hook.next) = &item;
    last_ = &item;
  }
  void remove(T& item) noexcept {
    if (!item.hook.linked) return;
    (item.hook.previous == nullptr ? first_ : item.hook.previous->hook.next) = item.hook.next;
    (item.hook.next == nullptr ? last_ : item.hook.next->hook.previous) = item.hook.previous;
    item.hook = {};
  }
  // `visit` must not change the list.
  template <class Visit>
  void for_each(Visit&& visit) {
    for (T* item = first_; item != nullptr; item = item->hook.next) visit(*item);
  }
  [[nodiscard]] T* first() const noexcept { return first_; }
  [[nodiscard]] bool empty() const noexcept { return first_ == nullptr; }

 private:
  T* first_ = nullptr;
  T* last_ = nullptr;
};

}  // namespace towline
