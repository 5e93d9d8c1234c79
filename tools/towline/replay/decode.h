// A decode rank: keeps a cache of pages of its heads, fetches pages that requests need and it does not have,
// and checks every page.
#pragma once

#include <nlohmann/json.hpp>

#include "channel.h"

namespace tool::replay {

// The body of a decode process. `configuration`: {"setup", "rank", "listen"}; of the setup it uses only each
// side's own options, the rest comes from the prefill side. Waits for {"start": address of prefill rank 0},
// tells the parent {"plan"}, {"progress", "bytes", "total"} and {"finished"}, measures the machine's copy
// limit when told {"measure"}, and tells {"result"}.
void run_decode(const nlohmann::json& configuration, Channel& parent);

}  // namespace tool::replay
