// The object that each thread is using, so that a thread which removes the object can wait for the users: one
// hazard pointer per thread. The user's side is two plain stores; the remover pays all the cost and makes the
// kernel run a fence on every processor of this process (membarrier). A locked instruction on the user's side
// would wait for all of its earlier stores, which after a copy of 4 KiB takes a third as long as the copy.
//
//   the user                                  the one who takes away
//     const InUse use(object);                  closed = true;
//     if (use && !closed) { ...object... }      InUse::publish();
//                                               while (InUse::by_any(object)) ...
//
// by_any() sees a user that entered before publish(); a later one sees `closed`.
#pragma once

#include <atomic>

#include "base/check.h"
#include "base/sync/spin.h"

namespace towline {

class InUse {
 public:
  // One object a thread at a time: does not nest.
  explicit InUse(const void* object) noexcept : slot_(mine()) {
    if (slot_ == nullptr) [[unlikely]]
      return;
    TOWLINE_DCHECK(slot_->object.load(std::memory_order_relaxed) == nullptr, "it does not nest");
    slot_->object.store(object, std::memory_order_relaxed);
    if (slot_->fences) [[unlikely]]
      full_fence();
    else
      std::atomic_signal_fence(std::memory_order_seq_cst);
  }
  InUse(const InUse&) = delete;
  InUse& operator=(const InUse&) = delete;
  ~InUse() { end(); }
  void end() noexcept {
    if (slot_ != nullptr) slot_->object.store(nullptr, std::memory_order_release);
    slot_ = nullptr;
  }
  // False if memory is short at this thread's first use: use another path.
  explicit operator bool() const noexcept { return slot_ != nullptr; }

  static void publish() noexcept;
  // Whether publish() is a fence for threads that have none of their own.
  [[nodiscard]] static bool publishes() noexcept;
  [[nodiscard]] static bool by_any(const void* object) noexcept;

 private:
  friend class InUseSlots;

  // One cache line each; made when a thread first needs one, used again by other threads after it, never
  // freed.
  struct alignas(kNoSharingBytes) Slot {
    std::atomic<const void*> object{nullptr};
    bool fences = false;  // no membarrier in this kernel: users fence themselves
    std::atomic<bool> taken{true};
    Slot* next = nullptr;
  };

  static Slot* mine() noexcept {
    Slot* const slot = mine_;
    return slot != nullptr ? slot : take_slot();
  }
  [[gnu::cold]] static Slot* take_slot() noexcept;

  // Reached without a call. This makes all thread-local storage of a library that has this file static: the rest of it
  // must be small (base/per_thread.h), and CMake keeps this file out of plugins that don't need it.
  static thread_local constinit Slot* mine_ __attribute__((tls_model("initial-exec")));

  Slot* slot_;
};

}  // namespace towline
