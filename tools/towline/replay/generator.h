// Generated requests that resemble the Mooncake conversation trace.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "replay/trace.h"

namespace tool::replay {

// `count` requests that follow the trace's figures (shared/traces): inputs log-normal with a median of 6,909
// tokens, a mean of 12,035 and at most 126,195; outputs with a median of 350; one request every 0.3 s; every
// request shares the first block, and about half continue an earlier one, so that of 1000 block references
// 634 are distinct. The same seed gives the same requests.
[[nodiscard]] std::vector<Request> generate_trace(size_t count, uint64_t seed);

}  // namespace tool::replay
