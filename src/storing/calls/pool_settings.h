// "<backend>.threads", "<backend>.batch", "<backend>.piece".
#pragma once

#include "storing/calls/library.h"
#include "towline/plugin/backend.hpp"

namespace towline::calls {

// Throws plugin::Failure naming key and value. A batch has at most `most_batch` pieces.
[[nodiscard]] PoolSettings read_pool_settings(const plugin::Host& host, const char* backend,
                                              uint32_t most_batch, const char* batch, const char* piece);

}  // namespace towline::calls
