// Reads Towline's descriptions of itself, which are JSON.
#pragma once

#include <chrono>
#include <string>

#include <nixl_types.h>

namespace towline::nixl {

// NIXL's kinds of memory that Towline's usable backends serve, from towline_agent_info.
[[nodiscard]] nixl_mem_list_t memories_of_info(const std::string& info);
// True for what only the agent that keeps it reaches.
[[nodiscard]] constexpr bool is_stored(nixl_mem_t kind) noexcept {
  return kind == FILE_SEG || kind == BLK_SEG;
}

// The price that towline_transfer_route gives for the transfer.
struct RoutePrice {
  std::chrono::nanoseconds duration;
  std::chrono::nanoseconds error;  // by how much transfers like it differed; nothing measured: the duration
  bool measured;                   // transfers of its size were, in this process
};
[[nodiscard]] RoutePrice price_of_route(const std::string& route);

// What a server of objects last answered to the backend that the transfer takes, if it was a failure; else empty.
[[nodiscard]] std::string last_failure_of_route(const std::string& route);

// Whether that backend copies between memories of one host.
[[nodiscard]] bool is_host_copy(const std::string& route);

}  // namespace towline::nixl
