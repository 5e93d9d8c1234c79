// What one rank can see to be wrong with a call, before anybody else is bothered.
#pragma once

#include "towline/collectives.h"

namespace towline::collectives {

// Throws Error(kInvalidArgument, kOutOfRange, kUnsupported) naming the operation, the argument and its value.
void check_call(const towline_collective_t& call, int rank, int size);

}  // namespace towline::collectives
