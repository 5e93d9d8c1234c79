// The services backends get from the core, as the plugin ABI's table of C functions. Their context is the
// Backend.
#pragma once

#include "towline/plugin/v1.h"

namespace towline {

// All slots but `context`.
towline_host_v1_t host_services() noexcept;

}  // namespace towline
