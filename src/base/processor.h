// On which processor a thread runs, and not there.
#pragma once

#include <sched.h>

namespace towline {

// The processor of the calling thread at this moment, or -1.
inline int current_processor() noexcept { return ::sched_getcpu(); }

// Moves the calling thread off `processor` (none below 0) if it runs there and may run elsewhere; where to is
// the system's choice, and where it may run stays as it was.
//
// The kernel likes to wake a thread on the processor of who woke it, and leaves two that never sleep there
// together for tens of milliseconds, while another processor is idle.
inline void leave_processor(int processor) noexcept {
  if (processor < 0 || current_processor() != processor) return;
  cpu_set_t allowed;
  if (::sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;  // more processors than the set holds
  cpu_set_t others = allowed;
  CPU_CLR(processor, &others);
  if (CPU_COUNT(&others) == 0 || ::sched_setaffinity(0, sizeof others, &others) != 0) return;
  (void)::sched_setaffinity(0, sizeof allowed, &allowed);
}

}  // namespace towline
