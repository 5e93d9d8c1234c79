#include "base/sync/in_use.h"

#include <linux/membarrier.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <new>

#include "base/per_thread.h"

namespace towline {

thread_local constinit InUse::Slot* InUse::mine_ = nullptr;

// All slots of the process, and how its kernel fences.
class InUseSlots {
 public:
  static InUseSlots& of_process() noexcept {
    static InUseSlots slots;
    return slots;
  }

  InUse::Slot* take() noexcept {
    for (InUse::Slot* slot = first_.load(std::memory_order_acquire); slot != nullptr; slot = slot->next) {
      bool taken = false;
      if (slot->taken.compare_exchange_strong(taken, true, std::memory_order_acquire)) return slot;
    }
    auto* slot = new (std::nothrow) InUse::Slot;
    if (slot == nullptr) return nullptr;
    slot->fences = !registered_;
    slot->next = first_.load(std::memory_order_relaxed);
    while (!first_.compare_exchange_weak(slot->next, slot, std::memory_order_release)) {
    }
    return slot;
  }

  void publish() const noexcept {
    full_fence();
    if (!registered_ || barrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED) == 0) return;
    // Only a child of fork may have lost the registration.
    (void)barrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED);
    if (barrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED) == 0) return;
    // The process forbids itself the system call since then (seccomp). Users go on without a fence, but a processor keeps
    // no store to itself for this long, and a later user sees what the caller has stored before.
    constexpr timespec kPause = {0, 1'000'000};
    ::nanosleep(&kPause, nullptr);
  }

  bool publishes() const noexcept { return registered_; }

  bool has(const void* object) const noexcept {
    for (InUse::Slot* slot = first_.load(std::memory_order_acquire); slot != nullptr; slot = slot->next)
      if (slot->object.load(std::memory_order_acquire) == object) return true;
    return false;
  }

 private:
  InUseSlots() noexcept : registered_(barrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) == 0) {
    pthread_atfork(nullptr, nullptr, [] { of_process().forget_other_threads(); });
  }

  static long barrier(int command) noexcept {
#if defined(__SANITIZE_THREAD__)
    (void)command;
    return -1;  // it follows no such fences: users fence themselves
#else
    return ::syscall(SYS_membarrier, command, 0, 0);
#endif
  }

  // In a forked child, where they will never leave.
  void forget_other_threads() noexcept {
    for (InUse::Slot* slot = first_.load(std::memory_order_acquire); slot != nullptr; slot = slot->next)
      slot->object.store(nullptr, std::memory_order_relaxed);
  }

  const bool registered_;
  std::atomic<InUse::Slot*> first_{nullptr};
};

InUse::Slot* InUse::take_slot() noexcept {
  Slot* const slot = InUseSlots::of_process().take();
  if (slot == nullptr) return nullptr;
  mine_ = slot;
  at_thread_end(
      [](void* taken) {
        mine_ = nullptr;
        static_cast<Slot*>(taken)->taken.store(false, std::memory_order_release);
      },
      slot);
  return slot;
}

void InUse::publish() noexcept { InUseSlots::of_process().publish(); }
bool InUse::publishes() noexcept { return InUseSlots::of_process().publishes(); }
bool InUse::by_any(const void* object) noexcept { return InUseSlots::of_process().has(object); }

}  // namespace towline
