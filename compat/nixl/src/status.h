// Towline's status as one of NIXL's.
#pragma once

#include <nixl_types.h>
#include <towline/status.h>

namespace towline::nixl {

[[nodiscard]] nixl_status_t to_nixl(Status status) noexcept;

}  // namespace towline::nixl
