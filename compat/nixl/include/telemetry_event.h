// Source-compatible with NIXL's header of this name: the events of an agent's telemetry, and the names under
// which exporters publish them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include <nixl_types.h>

constexpr char TELEMETRY_BUFFER_SIZE_VAR[] = "NIXL_TELEMETRY_BUFFER_SIZE";
constexpr char TELEMETRY_RUN_INTERVAL_VAR[] = "NIXL_TELEMETRY_RUN_INTERVAL";
constexpr char TELEMETRY_ENABLED_METRICS_VAR[] = "NIXL_TELEMETRY_ENABLED_METRICS";

inline constexpr int TELEMETRY_VERSION = 4;  // of the buffer that readers map

enum class nixl_telemetry_event_type_t : uint32_t {
  AGENT_TX_BYTES = 0,
  AGENT_RX_BYTES = 1,
  AGENT_TX_REQUESTS_NUM = 2,
  AGENT_RX_REQUESTS_NUM = 3,
  AGENT_MEMORY_REGISTERED = 4,
  AGENT_MEMORY_DEREGISTERED = 5,
  AGENT_XFER_TIME = 6,       // microseconds
  AGENT_XFER_POST_TIME = 7,  // microseconds
  AGENT_ERR_NOT_POSTED = 8,
  AGENT_ERR_INVALID_PARAM = 9,
  AGENT_ERR_BACKEND = 10,
  AGENT_ERR_NOT_FOUND = 11,
  AGENT_ERR_MISMATCH = 12,
  AGENT_ERR_NOT_ALLOWED = 13,
  AGENT_ERR_REPOST_ACTIVE = 14,
  AGENT_ERR_UNKNOWN = 15,
  AGENT_ERR_NOT_SUPPORTED = 16,
  AGENT_ERR_REMOTE_DISCONNECT = 17,
  AGENT_ERR_CANCELED = 18,
  AGENT_ERR_NO_TELEMETRY = 19,
  AGENT_TELEMETRY_EVENTS_DROPPED = 20,
};

inline constexpr std::size_t nixl_telemetry_event_type_count =
    static_cast<std::size_t>(nixl_telemetry_event_type_t::AGENT_TELEMETRY_EVENTS_DROPPED) + 1;

using nixl_telemetry_metric_mask_t = std::array<bool, nixl_telemetry_event_type_count>;

// The event that counts a call's failure with this status.
[[nodiscard]] inline nixl_telemetry_event_type_t nixlTelemetryEventTypeForStatus(nixl_status_t status) {
  constexpr uint32_t kFirst = static_cast<uint32_t>(nixl_telemetry_event_type_t::AGENT_ERR_NOT_POSTED);
  const bool known = status <= NIXL_ERR_NOT_POSTED && status >= NIXL_ERR_NO_TELEMETRY;
  if (!known) return nixl_telemetry_event_type_t::AGENT_ERR_UNKNOWN;
  return static_cast<nixl_telemetry_event_type_t>(kFirst + static_cast<uint32_t>(-1 - status));
}

namespace nixlEnumStrings {

[[nodiscard]] constexpr std::string_view telemetryEventTypeStr(nixl_telemetry_event_type_t type) noexcept {
  constexpr std::string_view kNames[] = {
      "agent_tx_bytes",          "agent_rx_bytes",          "agent_tx_requests_num",
      "agent_rx_requests_num",   "agent_memory_registered", "agent_memory_deregistered",
      "agent_xfer_time",         "agent_xfer_post_time",    "agent_err_not_posted",
      "agent_err_invalid_param", "agent_err_backend",       "agent_err_not_found",
      "agent_err_mismatch",      "agent_err_not_allowed",   "agent_err_repost_active",
      "agent_err_unknown",       "agent_err_not_supported", "agent_err_remote_disconnect",
      "agent_err_canceled",      "agent_err_no_telemetry",  "agent_telemetry_events_dropped",
  };
  static_assert(std::size(kNames) == nixl_telemetry_event_type_count);
  const auto index = static_cast<std::size_t>(type);
  return index < std::size(kNames) ? kNames[index] : std::string_view{"unknown_event"};
}

}  // namespace nixlEnumStrings

// One event. Readers of the shared buffer see these bytes.
struct nixlTelemetryEvent {
  nixl_telemetry_event_type_t eventType_{};
  uint64_t value_ = 0;

  nixlTelemetryEvent() noexcept = default;
  nixlTelemetryEvent(nixl_telemetry_event_type_t type, uint64_t value) noexcept
      : eventType_(type), value_(value) {}
};
