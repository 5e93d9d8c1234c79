// Measures the speed of this machine's memory.
#pragma once

#include "replay/model.h"

namespace tool::replay {

// Bytes per second at which one thread copies pages of this pool to others by plain memcpy, block by block as
// a transfer of `part` would, in random order: the median of a few runs that together take half a second.
// Overwrites the pool.
[[nodiscard]] double measure_copy_limit(const PoolLayout& layout, HeadRange part);

}  // namespace tool::replay
