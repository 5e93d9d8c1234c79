// Checks of a call that one rank can make alone, before other ranks are involved.
#pragma once

#include "towline/collectives.h"

namespace towline::collectives {

// Throws Error(kInvalidArgument, kOutOfRange, kUnsupported) naming the operation, the argument and its value.
void check_call(const towline_collective_t& call, int rank, int size);

}  // namespace towline::collectives
