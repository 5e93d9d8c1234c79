// An agent's telemetry, as NIXL_TELEMETRY_* asks for it: counts for Prometheus under NIXL's names, and a buffer of events.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include <common/scoped_fd.h>
#include "exporter.h"
#include "exporter_plugin.h"
#include "telemetry_counts.h"
#include "telemetry_ring.h"

namespace towline::nixl {

enum class TelemetryExporter { kNone, kBuffer, kPrometheus, kPrometheusOfAll, kPlugin };

struct TelemetrySettings {
  TelemetryExporter exporter = TelemetryExporter::kNone;
  std::string plugin;     // its name
  std::string address;    // of Prometheus: "0.0.0.0:9090"
  std::string directory;  // of the buffer, or of the counts of all processes
  size_t buffer_events = 4096;
  std::chrono::milliseconds interval{100};  // between a plugin's batches
  std::vector<double> bounds;               // of the histograms, in microseconds
  uint64_t enabled = ~uint64_t{0};
  std::string rank;
  int64_t stale_s = 30;  // after this, counts of a process that has ended are removed
};

// Any thread may call any function. Calls after a fork do nothing.
class Telemetry {
 public:
  // Throws std::runtime_error. An address that is taken is not an error: see exporter.h.
  Telemetry(const std::string& agent, const TelemetrySettings& settings);
  ~Telemetry();
  Telemetry(const Telemetry&) = delete;
  Telemetry& operator=(const Telemetry&) = delete;

  // A request that ended well.
  void transferred(bool writes, uint64_t bytes, int64_t post_us, int64_t whole_us) noexcept;
  void registered(uint64_t bytes) noexcept {
    note(std::array{nixlTelemetryEvent{nixl_telemetry_event_type_t::AGENT_MEMORY_REGISTERED, bytes}});
  }
  void deregistered(uint64_t bytes) noexcept {
    note(std::array{nixlTelemetryEvent{nixl_telemetry_event_type_t::AGENT_MEMORY_DEREGISTERED, bytes}});
  }
  void failed(nixl_status_t status) noexcept {
    note(std::array{nixlTelemetryEvent{nixlTelemetryEventTypeForStatus(status), 1}});
  }

 private:
  void note(std::span<const nixlTelemetryEvent> events) noexcept;
  [[nodiscard]] bool is_enabled(nixl_telemetry_event_type_t type) const noexcept;
  void make_counts(const TelemetryIdentity& identity);
  // Serves the directory, unless another process does.
  void try_to_serve() noexcept;
  void serve_again() noexcept;
  [[nodiscard]] std::vector<CountsSnapshot> read_directory() const;
  static void collect(void* telemetry, void (*take)(void* argument, const char* json, size_t bytes),
                      void* argument);

  const TelemetrySettings settings_;
  const int process_;
  std::unique_ptr<TelemetryRing> ring_;
  std::unique_ptr<ExporterPlugin> plugin_;
  TelemetryCounts* counts_ = nullptr;
  ::nixl::scopedFd counts_file_;  // locked while this lives
  std::shared_ptr<PageOfProcess> page_;

  std::mutex serving_mutex_;
  std::atomic<int64_t> asked_ms_{0};  // when this last tried to serve
  ::nixl::scopedFd owner_;            // locked while this serves
  SharedExporter own_exporter_;       // destroyed first: its threads read the rest
};

}  // namespace towline::nixl
