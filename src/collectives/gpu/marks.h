// What ranks compare of an operation, as numbers and as words.
#pragma once

#include <cstdint>
#include <string>

#include "collectives/gpu/job.h"

namespace towline::collectives::gpu {

// Of everything but the number; not 0.
uint32_t digest_of(const Mark& mark);
// For people.
std::string text_of(const Mark& mark);

}  // namespace towline::collectives::gpu
