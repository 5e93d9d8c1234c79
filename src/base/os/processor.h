// The processor on which a thread runs, and moving away from it.
#pragma once

#include <sched.h>

namespace towline {

// The processor of the calling thread at this moment, or -1.
inline int current_processor() noexcept { return ::sched_getcpu(); }

// Moves the calling thread off `processor` (below 0: none) if it runs there and may run elsewhere. The system
// chooses the new processor; the thread's affinity does not change.
//
// The kernel tends to wake a thread on its waker's processor, and leaves two busy threads there together for
// tens of milliseconds while another processor is idle.
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
