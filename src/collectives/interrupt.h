// Lets the application end the operation in which this thread waits.
#pragma once

#include "base/clock.h"
#include "towline/collectives.h"

namespace towline::collectives {

// Lives during a blocking operation, or while a communicator forms. Waits inside it poll Interrupt::asked() on the same thread.
class Interrupt {
 public:
  using Function = int32_t (*)(void* context);

  // Null: the application is not asked.
  Interrupt(Function function, void* context) noexcept : function_(function), context_(context) {
    if (function_ == nullptr) return;
    outer_ = current;
    current = this;
  }
  explicit Interrupt(const towline_collective_options_t* options) noexcept
      : Interrupt(options == nullptr ? nullptr : options->interrupted,
                  options == nullptr ? nullptr : options->interrupt_context) {}
  ~Interrupt() {
    if (function_ != nullptr) current = outer_;
  }
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  // Asks the application at most once every 50 ms, since its function may take a lock. Once it has said yes it is not asked
  // again: the wait that heard it may have ignored the error, as a look for other ranks' failures does.
  static bool asked() noexcept {
    if (current == nullptr) return false;
    if (current->said_yes_) return true;
    const uint64_t now = monotonic_now_ns();
    if (current->next_ns_ == 0) current->next_ns_ = now + kIntervalNs;
    if (now < current->next_ns_) return false;
    current->next_ns_ = now + kIntervalNs;
    current->said_yes_ = current->function_(current->context_) != 0;
    return current->said_yes_;
  }

 private:
  static constexpr uint64_t kIntervalNs = 50 * kMillisecondNs;
  static inline thread_local Interrupt* current = nullptr;
  const Function function_;
  void* const context_;
  Interrupt* outer_ = nullptr;
  uint64_t next_ns_ = 0;
  bool said_yes_ = false;
};

}  // namespace towline::collectives
