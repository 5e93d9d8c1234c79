// Copies a part of a collective's data. Outputs may overlap inputs exactly.
#pragma once

#include <cstdint>

#include "base/copy/copy.h"

namespace towline::collectives {

inline void copy(uint8_t* to, const uint8_t* from, uint64_t bytes) {
  if (to != from) copy_bytes(to, from, bytes);
}

}  // namespace towline::collectives
