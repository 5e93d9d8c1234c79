// A value that is read often and replaced rarely. Reading takes no locked instruction, and no thread waits: a
// replaced value is freed at a later replacement, or with this object, once no thread reads it.
#pragma once

#include <atomic>
#include <new>
#include <utility>

#include "base/sync/in_use.h"

namespace towline {

template <class T>
class RcuValue {
  struct Entry;

 public:
  // Keeps the value alive during its lifetime. At most one per thread at a time, as with InUse.
  class Look {
   public:
    // Throws std::bad_alloc if memory is short at this thread's first use.
    explicit Look(const RcuValue& of) : use_(&of), entry_(of.entry_.load(std::memory_order_acquire)) {
      if (!use_) throw std::bad_alloc();
    }
    // False: there is no value.
    explicit operator bool() const noexcept { return entry_ != nullptr; }
    const T& operator*() const noexcept { return entry_->value; }
    const T* operator->() const noexcept { return &entry_->value; }

   private:
    const InUse use_;
    const Entry* const entry_;
  };

  RcuValue() = default;
  RcuValue(const RcuValue&) = delete;
  RcuValue& operator=(const RcuValue&) = delete;
  ~RcuValue() {
    delete entry_.load(std::memory_order_relaxed);
    free_past();
  }

  // Everything below: one thread at a time.
  [[nodiscard]] bool empty() const noexcept { return entry_.load(std::memory_order_relaxed) == nullptr; }
  void set(T value) { replace(new Entry{std::move(value), nullptr}); }
  void clear() noexcept {
    if (!empty()) replace(nullptr);
  }

 private:
  struct Entry {
    const T value;
    Entry* before;
  };

  void replace(Entry* entry) noexcept {
    if (Entry* const old = entry_.exchange(entry, std::memory_order_acq_rel); old != nullptr)
      old->before = std::exchange(past_, old);
    if (past_ == nullptr) return;
    InUse::publish();
    if (!InUse::by_any(this)) free_past();
  }
  void free_past() noexcept {
    while (past_ != nullptr) delete std::exchange(past_, past_->before);
  }

  std::atomic<Entry*> entry_{nullptr};
  Entry* past_ = nullptr;  // replaced values that a thread may still read
};

}  // namespace towline
