// Limits how often a source may be refused. An honest peer is refused in a burst, such as when a region is
// deregistered while its frames are in flight; a peer that guesses keys is refused for ever.
//
// Connections of one source share one. Any thread; only refusals use it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <mutex>

#include "base/clock.h"

namespace towline::framing {

class RefusalBudget {
 public:
  explicit RefusalBudget(uint64_t burst = kAccessBurst) noexcept : burst_(burst), left_(burst) {}

  // Takes one refusal; false: none is left.
  bool take(uint64_t now_ns) noexcept {
    const std::lock_guard lock(mutex_);
    const uint64_t regained = (now_ns - std::min(now_ns, since_ns_)) / kRegainNs;
    if (regained != 0) {
      left_ = std::min(burst_, left_ + regained);
      since_ns_ = now_ns;
    }
    if (left_ == 0) return false;
    --left_;
    return true;
  }

  static constexpr uint64_t kAccessBurst = 65536;  // what 64 sockets may have uncounted
  static constexpr uint64_t kRegainNs = 10 * kMillisecondNs;

 private:
  std::mutex mutex_;
  const uint64_t burst_;
  uint64_t left_;
  uint64_t since_ns_ = 0;
};

}  // namespace towline::framing
