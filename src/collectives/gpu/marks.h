// Marks: what ranks compare of an operation, as numbers and as text.
#pragma once

#include <cstdint>
#include <string>

#include "collectives/gpu/job.h"

namespace towline::collectives::gpu {

// The tag of an all_reduce with RMSNorm; never 0.
uint64_t norm_tag(uint64_t width, float epsilon);
// Its number tells it from the communicator's other operations. Messages have none.
bool is_collective(const Mark& mark);
// For people.
std::string text_of(const Mark& mark);

}  // namespace towline::collectives::gpu
