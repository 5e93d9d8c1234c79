// A decode rank: keeps a cache of pages of its heads, gets what requests need and it lacks, and checks every
// page.
#pragma once

#include <nlohmann/json.hpp>

#include "channel.h"

namespace tool::replay {

// The body of a decode process. `configuration`: {"setup", "rank", "listen"}; of the setup only what is each
// side's own counts, the rest comes from the prefill side. Waits for {"start": address of prefill rank 0},
// tells the parent
// {"plan"}, {"progress", "bytes", "total"} and {"finished"}, measures the machine's copy limit when told
// {"measure"}, and tells {"result"}.
void run_decode(const nlohmann::json& configuration, Channel& parent);

}  // namespace tool::replay
