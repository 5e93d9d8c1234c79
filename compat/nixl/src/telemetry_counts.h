// The counts of an agent's telemetry since the agent was made: by event, under the names that NIXL's exporters use.
//
// The counts lie in memory that any thread adds to without a lock. With the exporter prometheus_mp that memory is a
// file, which the process that serves reads: as numbers and short names of a fixed layout, none of which it trusts.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <telemetry_event.h>

namespace towline::nixl {

inline constexpr size_t kMostBounds = 64;
inline constexpr size_t kEvents = nixl_telemetry_event_type_count;

// The memory, and the file. Plain numbers and atomics only.
struct TelemetryCounts {
  static constexpr uint64_t kMagic = 0x31304d54584e5754;  // "TWNXTM01" in memory order
  struct Histogram {
    std::atomic<uint64_t> counts[kMostBounds + 1];
  };

  std::atomic<uint64_t> magic;
  uint64_t bound_count;
  double bounds[kMostBounds];  // upper bounds in microseconds, ascending
  uint64_t enabled;            // a bit for each event
  char host[128];              // names end with NUL
  char agent[128];
  char rank[32];
  uint64_t pid;
  uint64_t instance;  // agents of one process
  std::atomic<int64_t> updated_s;
  std::atomic<uint64_t> totals[kEvents];
  std::atomic<uint64_t> lasts[kEvents];
  std::atomic<uint64_t> events[kEvents];
  Histogram transfer_time;
  Histogram post_time;
};

struct TelemetryIdentity {
  std::string host, agent, rank;
};

// Begins a count in zeroed memory.
void begin_counts(TelemetryCounts& counts, const TelemetryIdentity& identity, std::span<const double> bounds,
                  uint64_t enabled);
void count_event(TelemetryCounts& counts, nixl_telemetry_event_type_t type, uint64_t value) noexcept;

// The counters at one moment.
struct CountsSnapshot {
  TelemetryIdentity identity;
  uint64_t pid = 0;
  uint64_t instance = 0;
  uint64_t enabled = 0;
  int64_t updated_s = 0;
  std::vector<double> bounds;
  std::array<uint64_t, kEvents> totals{}, lasts{}, events{};
  std::vector<uint64_t> transfer_time, post_time;
};
// Nothing if these are no such counts.
[[nodiscard]] std::optional<CountsSnapshot> read_counts(const TelemetryCounts& counts);
// The same from a file's bytes, whose names may lack their ends.
[[nodiscard]] std::optional<CountsSnapshot> read_counts(std::span<const std::byte> file);

// The families of all snapshots, as towline_exporter_add takes them. `by_process`: with the labels pid,
// agent_instance and local_rank, by which prometheus_mp tells agents apart; else agents of one name are added up.
[[nodiscard]] nlohmann::json families_of(std::span<const CountsSnapshot> snapshots, bool by_process);

}  // namespace towline::nixl
