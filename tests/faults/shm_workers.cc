#include "shm_workers.h"

#include "agent/worker.h"
#include "capi/handles.h"

namespace towline::faults {

void hold_worker(towline_agent_t* agent, uint32_t worker) { agent->agent->workers().at(worker)->lock(); }

void release_worker(towline_agent_t* agent, uint32_t worker) { agent->agent->workers().at(worker)->unlock(); }

uint32_t worker_of_this_thread(towline_agent_t* agent) { return agent->agent->my_worker().index(); }

}  // namespace towline::faults
