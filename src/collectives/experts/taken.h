// Structs of callers, which may be older or newer than this build.
#pragma once

#include "base/error.h"
#include "towline/plugin/sized.h"

namespace towline::collectives::experts {

// Throws Error if it is null, or has fewer bytes than `minimum`.
template <class Struct>
Struct taken(const Struct* from, size_t minimum) {
  Struct to = {};
  if (from == nullptr || towline_take(&to, sizeof to, minimum, from) == 0)
    fail(Status::kInvalidArgument, "experts: a struct has fewer bytes than its first version");
  return to;
}

}  // namespace towline::collectives::experts
