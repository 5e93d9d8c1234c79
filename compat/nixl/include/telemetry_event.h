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

inline constexpr std::array telemetry_error_event_types = {
    nixl_telemetry_event_type_t::AGENT_ERR_NOT_POSTED,
    nixl_telemetry_event_type_t::AGENT_ERR_INVALID_PARAM,
    nixl_telemetry_event_type_t::AGENT_ERR_BACKEND,
    nixl_telemetry_event_type_t::AGENT_ERR_NOT_FOUND,
    nixl_telemetry_event_type_t::AGENT_ERR_MISMATCH,
    nixl_telemetry_event_type_t::AGENT_ERR_NOT_ALLOWED,
    nixl_telemetry_event_type_t::AGENT_ERR_REPOST_ACTIVE,
    nixl_telemetry_event_type_t::AGENT_ERR_UNKNOWN,
    nixl_telemetry_event_type_t::AGENT_ERR_NOT_SUPPORTED,
    nixl_telemetry_event_type_t::AGENT_ERR_REMOTE_DISCONNECT,
    nixl_telemetry_event_type_t::AGENT_ERR_CANCELED,
    nixl_telemetry_event_type_t::AGENT_ERR_NO_TELEMETRY,
};
inline constexpr std::array telemetry_metric_event_types = {
    nixl_telemetry_event_type_t::AGENT_TX_BYTES,
    nixl_telemetry_event_type_t::AGENT_RX_BYTES,
    nixl_telemetry_event_type_t::AGENT_TX_REQUESTS_NUM,
    nixl_telemetry_event_type_t::AGENT_RX_REQUESTS_NUM,
    nixl_telemetry_event_type_t::AGENT_MEMORY_REGISTERED,
    nixl_telemetry_event_type_t::AGENT_MEMORY_DEREGISTERED,
    nixl_telemetry_event_type_t::AGENT_XFER_TIME,
    nixl_telemetry_event_type_t::AGENT_XFER_POST_TIME,
    nixl_telemetry_event_type_t::AGENT_TELEMETRY_EVENTS_DROPPED,
};
static_assert(telemetry_error_event_types.size() + telemetry_metric_event_types.size() ==
              nixl_telemetry_event_type_count);

// All events of errors are one family, with the status as a label.
inline constexpr const char* telemetry_error_family_name = "agent_errors_total";
inline constexpr const char* telemetry_error_family_help = "Operations that failed, by status";

// The names of an event's series; null: it has no such series.
struct nixlTelemetryMetricDescriptor {
  const char* counterName = nullptr;
  const char* counterHelp = nullptr;
  const char* gaugeName = nullptr;
  const char* gaugeHelp = nullptr;
  const char* histogramName = nullptr;
  const char* histogramHelp = nullptr;
};

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

// The label of an error's status; null for other events.
[[nodiscard]] constexpr const char* telemetryErrorStatusLabel(nixl_telemetry_event_type_t type) noexcept {
  constexpr std::string_view kPrefix = "agent_err_";
  const std::string_view name = telemetryEventTypeStr(type);
  return name.starts_with(kPrefix) ? name.data() + kPrefix.size() : nullptr;
}

[[nodiscard]] constexpr nixlTelemetryMetricDescriptor telemetryMetricDescriptor(
    nixl_telemetry_event_type_t type) noexcept {
  constexpr const char* kSum = "The sum over an agent's operations";
  constexpr const char* kLast = "The last operation's value";
  constexpr const char* kTimes = "The operations' times in microseconds";
  using Event = nixl_telemetry_event_type_t;
  switch (type) {
    case Event::AGENT_TX_BYTES:
      return {"agent_tx_bytes_total", kSum, "agent_tx_last_bytes", kLast};
    case Event::AGENT_RX_BYTES:
      return {"agent_rx_bytes_total", kSum, "agent_rx_last_bytes", kLast};
    case Event::AGENT_TX_REQUESTS_NUM:
      return {"agent_tx_requests_num_total", kSum};
    case Event::AGENT_RX_REQUESTS_NUM:
      return {"agent_rx_requests_num_total", kSum};
    case Event::AGENT_MEMORY_REGISTERED:
      return {"agent_memory_registered_total", kSum, "agent_memory_registered_last_bytes", kLast};
    case Event::AGENT_MEMORY_DEREGISTERED:
      return {"agent_memory_deregistered_total", kSum, "agent_memory_deregistered_last_bytes", kLast};
    case Event::AGENT_XFER_TIME:
      return {"agent_xfer_time_total", kSum, "agent_xfer_time", kLast, "agent_xfer_time_us", kTimes};
    case Event::AGENT_XFER_POST_TIME:
      return {"agent_xfer_post_time_total", kSum,  "agent_xfer_post_time", kLast,
              "agent_xfer_post_time_us",    kTimes};
    case Event::AGENT_TELEMETRY_EVENTS_DROPPED:
      return {"agent_telemetry_events_dropped_total", kSum};
    default:
      return {};
  }
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
