// A thread that runs on one processor only.
#pragma once

#include <pthread.h>
#include <sched.h>

#include <cerrno>
#include <thread>

namespace towline::fabric {

// 0 or an errno. cpu -1: any, which is how threads begin.
inline int pin_thread(std::thread& thread, int cpu) noexcept {
  if (cpu == -1) return 0;
  if (cpu < 0 || cpu >= CPU_SETSIZE) return EINVAL;
  cpu_set_t only;
  CPU_ZERO(&only);
  CPU_SET(cpu, &only);
  return pthread_setaffinity_np(thread.native_handle(), sizeof only, &only);
}

}  // namespace towline::fabric
