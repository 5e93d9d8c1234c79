// Calls into a plugin.
#pragma once

#include <exception>

#include <towline_nixl.h>
#include "log.h"

namespace towline::nixl {

// Runs `work`, which calls an engine. An exception, or a status that NIXL does not have, becomes NIXL_ERR_BACKEND.
template <class Work>
nixl_status_t call_engine(const char* what, Work work) noexcept {
  try {
    const nixl_status_t status = work();
    if (status <= NIXL_IN_PROG && status >= NIXL_ERR_NO_TELEMETRY) return status;
    return fail(NIXL_ERR_BACKEND, "{} of a plugin's engine returned {}", what, static_cast<int>(status));
  } catch (const std::exception& error) {
    return fail(NIXL_ERR_BACKEND, "{} of a plugin's engine threw: {}", what, error.what());
  } catch (...) {
    return fail(NIXL_ERR_BACKEND, "{} of a plugin's engine threw", what);
  }
}

}  // namespace towline::nixl
