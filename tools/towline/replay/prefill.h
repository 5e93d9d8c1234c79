// A prefill rank: holds the pages of its heads, writes requests' blocks into them, and hands them to decode
// ranks.
#pragma once

#include <nlohmann/json.hpp>

#include "channel.h"

namespace tool::replay {

// The body of a prefill process. `configuration`: {"setup", "rank", "listen"}. Reports {"address"} to the
// parent, waits for {"start": [addresses of all prefill ranks]}, and reports {"result"} at the end.
void run_prefill(const nlohmann::json& configuration, Channel& parent);

}  // namespace tool::replay
