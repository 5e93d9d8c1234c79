// A timer of the system as a descriptor, readable from a moment on: it wakes a worker that sleeps on its descriptors.
#pragma once

#include <sys/timerfd.h>
#include <unistd.h>

#include <cstdint>

#include "base/clock.h"
#include "base/os/unique_fd.h"

namespace towline {

class Alarm {
 public:
  [[nodiscard]] bool is_open() const noexcept { return fd_.valid(); }
  [[nodiscard]] int fd() const noexcept { return fd_.get(); }
  // Sets it; it is opened when it is first needed. `watch(fd, rung, this)` has rung(this, events) called when it is
  // readable. False, or no descriptor: it can't ring, and the worker's own wake-ups have to do.
  template <class Watch>
  void ring_at(uint64_t at_ns, uint64_t now_ns, Watch&& watch) noexcept {
    if (at_ns == at_ns_) return;
    if (!is_open()) {
      fd_.reset(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
      if (!is_open()) return;
      constexpr auto kRung = [](void* alarm, uint32_t) { static_cast<Alarm*>(alarm)->take(); };
      if (!watch(fd(), kRung, this)) return fd_.reset();
    }
    set(at_ns, now_ns);
  }

 private:
  // Readable from then on, which is after `now_ns`, instead of the moment before; kNoDeadline: never.
  void set(uint64_t at_ns, uint64_t now_ns) noexcept {
    itimerspec when = {};  // zero stops it
    if (at_ns != kNoDeadline) {
      const uint64_t left = at_ns - now_ns;
      when.it_value = {static_cast<time_t>(left / kSecondNs), static_cast<long>(left % kSecondNs)};
    }
    timerfd_settime(fd_.get(), 0, &when, nullptr);
    at_ns_ = at_ns;
  }
  // It was readable.
  void take() noexcept {
    uint64_t expirations = 0;
    if (::read(fd_.get(), &expirations, sizeof expirations) > 0) at_ns_ = kNoDeadline;
  }

  UniqueFd fd_;
  uint64_t at_ns_ = kNoDeadline;
};

}  // namespace towline
