// Reads Towline's descriptions of itself, which are JSON.
#pragma once

#include <chrono>
#include <string>

#include <nixl_types.h>

namespace towline::nixl {

// NIXL's kinds of memory that Towline's usable backends serve, from towline_agent_info.
[[nodiscard]] nixl_mem_list_t memories_of_info(const std::string& info);

// A path's latency and bandwidth: orders of magnitude, for estimates.
struct PathModel {
  std::chrono::nanoseconds latency;
  double bytes_per_ns;
};
// The model of the backend that towline_transfer_route names.
[[nodiscard]] PathModel model_of_route(const std::string& route);

// Whether that backend copies between memories of one host.
[[nodiscard]] bool is_host_copy(const std::string& route);

}  // namespace towline::nixl
