// Lets the application end the operation in which this thread waits.
#pragma once

#include "base/clock.h"
#include "towline/collectives.h"

namespace towline::collectives {

// Lives during a blocking operation. Waits inside it poll Interrupt::asked() on the same thread.
class Interrupt {
 public:
  explicit Interrupt(const towline_collective_options_t* options) noexcept {
    if (options == nullptr || options->interrupted == nullptr) return;
    options_ = options;
    outer_ = current;
    current = this;
  }
  ~Interrupt() {
    if (options_ != nullptr) current = outer_;
  }
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  // Asks the application at most once every 50 ms, since its function may take a lock.
  static bool asked() noexcept {
    if (current == nullptr) return false;
    const uint64_t now = monotonic_now_ns();
    if (current->next_ns_ == 0) current->next_ns_ = now + kIntervalNs;
    if (now < current->next_ns_) return false;
    current->next_ns_ = now + kIntervalNs;
    return current->options_->interrupted(current->options_->interrupt_context) != 0;
  }

 private:
  static constexpr uint64_t kIntervalNs = 50 * kMillisecondNs;
  static inline thread_local Interrupt* current = nullptr;
  const towline_collective_options_t* options_ = nullptr;
  Interrupt* outer_ = nullptr;
  uint64_t next_ns_ = 0;
};

}  // namespace towline::collectives
