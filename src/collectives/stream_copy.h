// Copies whose destination nobody reads soon: stored past the caches where the processor can.
#pragma once

#include <cstddef>

namespace towline::collectives {

// As memcpy. Visible to others like ordinary stores made at its return.
void stream_copy(void* to, const void* from, size_t bytes) noexcept;

}  // namespace towline::collectives
