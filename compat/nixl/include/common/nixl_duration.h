// Source-compatible with NIXL's header of this name.
#pragma once

#include "nixl_time.h"

namespace nixlTime {

// The time since it was made or restarted.
class nixlDuration {
 public:
  void restart() noexcept { from_ = fastSteadyNow(); }
  [[nodiscard]] microseconds elapsed() const noexcept {
    return duration_cast<microseconds>(fastSteadyNow() - from_);
  }

 private:
  steady_clock::time_point from_ = fastSteadyNow();
};

}  // namespace nixlTime
