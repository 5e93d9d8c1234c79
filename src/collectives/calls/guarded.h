// Turns C++ exceptions into statuses for a backend's C table.
#pragma once

#include <cstdint>
#include <exception>
#include <new>

#include "base/error.h"
#include "towline/plugin/collective.h"
#include "towline/status.h"

namespace towline::collectives {

// Runs a call: an Error becomes a status and an error message of the host.
template <class Function>
int32_t guarded(const towline_collective_host_v1_t* host, Function&& function) noexcept {
  try {
    return static_cast<int32_t>(function());
  } catch (const Error& error) {
    host->fail(host->context, error.what());
    return static_cast<int32_t>(error.code());
  } catch (const std::bad_alloc&) {
    host->fail(host->context, "out of memory");
    return TOWLINE_OUT_OF_MEMORY;
  } catch (const std::exception& error) {
    host->fail(host->context, error.what());
    return TOWLINE_INTERNAL;
  }
}

}  // namespace towline::collectives
