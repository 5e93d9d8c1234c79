// Settings from the environment, else from NIXL's configuration file: TOML, named by NIXL_CONFIG_FILE, else
// ~/.nixl.cfg, else /etc/nixl.cfg. Both are read here and nowhere else in compat/nixl.
//
//   TOWLINE_NIXL_BACKENDS           Towline's transports that agents use, in order of preference: "shm,tcp"
//   TOWLINE_NIXL_TIMEOUT            deadline of transfers and control calls: "30s", "500ms"
//   TOWLINE_NIXL_METADATA_TIMEOUT   deadline of exchanging metadata with an address; default 5s
//   TOWLINE_NIXL_SHARE              1: registered memory is moved, in place, to where peers on this host can
//                                   map it
//   UCX_TLS                         without TOWLINE_NIXL_BACKENDS: the transports that it allows
//   TOWLINE_NIXL_UCX                1: a backend UCX is carried by UCX itself, with UCX_TLS as it is
//   NIXL_TELEMETRY_ENABLE           figures of each request; overrides the agent's configuration
//   NIXL_TELEMETRY_EXPORTER, _DIR, _BUFFER_SIZE, _PROMETHEUS_PORT, _PROMETHEUS_LOCAL, _MULTIPROC_DIR,
//   _MP_STALE_TTL, _RANK_ENV, _HISTOGRAM_BUCKETS_US, _ENABLED_METRICS, _RUN_INTERVAL
//                                   what telemetry is published, and how (telemetry.h)
//   NIXL_ETCD_ENDPOINTS, NIXL_ETCD_NAMESPACE, TOWLINE_ETCD_*
//                                   a metadata server (docs/directories.md)
//   NIXL_TCPSTORE_ENDPOINT, NIXL_TCPSTORE_TIMEOUT_MS, NIXL_TCPSTORE_OP_TIMEOUT_MS
//                                   torch's TCPStore as the metadata server
//   NIXL_PLUGIN_DIR                 where plugins of NIXL's interface lie
//   TOWLINE_NIXL_PLUGINS            names whose plugin is used although Towline has a backend or exporter of that name
//   NIXL_LOG_LEVEL                  TRACE, DEBUG, INFO, WARN, ERROR, FATAL; environment only
//
// Towline's own variables and file (docs/configuration.md) apply as well.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "log.h"
#include "telemetry.h"

namespace towline::nixl {

struct Settings {
  std::string backends;                // empty: Towline's own configuration decides
  bool real_ucx = false;               // "UCX" is UCX
  std::string ucx_tls;                 // the variable as it is
  std::chrono::nanoseconds timeout{};  // 0: Towline's default
  std::chrono::nanoseconds metadata_timeout = std::chrono::seconds{5};
  bool share = false;
  std::optional<bool> telemetry;
  std::vector<std::string> plugins;  // names whose plugin goes before Towline's own backend
  bool has_etcd = false;
  std::string tcp_store;  // host:port of torch's, in place of etcd
  std::chrono::nanoseconds tcp_store_connect_timeout = std::chrono::seconds{30};
  std::chrono::nanoseconds tcp_store_timeout = std::chrono::seconds{5};
  bool has_listen = false;   // TOWLINE_LISTEN says where
  std::string towline;       // TOML for Towline's agent, over its environment and file
  TelemetrySettings output;  // of telemetry, if the agent has it

  // Throws std::runtime_error that names the source, the key and what is expected.
  static Settings read();
};

[[nodiscard]] LogLevel log_level() noexcept;

// The text of a setting; empty if neither the environment nor NIXL's configuration file has it. Throws
// std::runtime_error for a file that can't be read.
[[nodiscard]] std::optional<std::string> find_setting(const std::string& name);

// The library that the environment names for Towline's backend of this scheme: TOWLINE_GDS_LIBRARY. "" for none.
[[nodiscard]] std::string vendor_library(const std::string& scheme);

// NIXL_PLUGIN_DIR, from either; "" if it is not set.
[[nodiscard]] std::string plugin_directory();

// The bucket of a backend OBJ that was given none: AWS_DEFAULT_BUCKET.
[[nodiscard]] std::string default_bucket();

// The transports that a value of UCX_TLS allows, as far as Towline has their like: "tcp,memory" for "tcp".
// Empty when it limits nothing, or allows nothing that is here.
[[nodiscard]] std::string transports_of_ucx_tls(std::string_view tls);

// "250ms", "30s", "2min"; empty when it can't be read.
[[nodiscard]] std::optional<std::chrono::nanoseconds> parse_duration(std::string_view text) noexcept;

}  // namespace towline::nixl
