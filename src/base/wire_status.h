// Statuses that come from a peer.
#pragma once

#include <cstdint>

#include "towline/status.h"

namespace towline {

// The reason that a peer gives. What is not an error of this release becomes kProtocol, and so does kNotYet: as the
// outcome of an operation it would say that the operation goes on.
[[nodiscard]] constexpr Status error_from_wire(int32_t value) noexcept {
  return value < 0 && value >= static_cast<int32_t>(Status::kInternal) ? static_cast<Status>(value)
                                                                       : Status::kProtocol;
}
// The same of an answer that may be 0: kOk.
[[nodiscard]] constexpr Status status_from_wire(int32_t value) noexcept {
  return value == 0 ? Status::kOk : error_from_wire(value);
}

}  // namespace towline
