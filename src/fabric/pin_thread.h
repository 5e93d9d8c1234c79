// A thread that runs on one processor only.
#pragma once

#include <cerrno>
#include <cstdint>
#include <thread>

#include "base/os/placement.h"

namespace towline::fabric {

// 0 or an errno. cpu -1: any, which is how threads begin.
inline int pin_thread(std::thread& thread, int cpu) noexcept {
  if (cpu == -1) return 0;
  if (cpu < 0) return EINVAL;
  const auto only = static_cast<uint32_t>(cpu);
  return run_on({&only, 1}, thread.native_handle());
}

}  // namespace towline::fabric
