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
  // False: there is no descriptor for it.
  [[nodiscard]] bool open() noexcept {
    fd_.reset(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
    return fd_.valid();
  }
  void close() noexcept { fd_.reset(); }

  [[nodiscard]] bool is_set_to(uint64_t at_ns) const noexcept { return at_ns == at_ns_; }
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

 private:
  UniqueFd fd_;
  uint64_t at_ns_ = kNoDeadline;
};

}  // namespace towline
