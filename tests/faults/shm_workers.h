// An agent's progress engines, for tests in which one of them stands still.
#pragma once

#include <cstdint>

#include "towline/towline.h"

namespace towline::faults {

// The worker does nothing until it is released, by the same thread.
void hold_worker(towline_agent_t* agent, uint32_t worker);
void release_worker(towline_agent_t* agent, uint32_t worker);
// The worker by which this thread's transfers go.
[[nodiscard]] uint32_t worker_of_this_thread(towline_agent_t* agent);

}  // namespace towline::faults
