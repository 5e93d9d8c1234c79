// Reading counters, this process's own or another's. Data that another process wrote is never trusted: the file
// must be sealed against shrinking, its header is copied and checked, names are cleaned, and every size comes
// from this side's layout.
#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "base/id.h"
#include "telemetry/metrics.h"

namespace towline {

struct SeriesSnapshot {
  std::string peer;
  std::string backend;
  Direction direction = Direction::kTx;
  uint64_t bytes = 0;
  uint64_t transfers = 0;
  uint64_t blocks = 0;
  uint64_t notices = 0;
  uint64_t served_bytes = 0;  // moved by the peer's own transfers, where this side takes part in them
  std::array<uint64_t, counters::kErrorCodes> errors{};  // by -status
  uint64_t measured = 0;  // transfers in the histogram; the next five are of those
  uint64_t latency_sum_ns = 0;
  uint64_t latency_mean_ns = 0;
  uint64_t latency_p50_ns = 0;
  uint64_t latency_p99_ns = 0;
  uint64_t latency_max_ns = 0;
  std::array<uint64_t, kLatencyBuckets> latency{};
};

struct Snapshot {
  std::string agent;
  Id incarnation;
  uint32_t pid = 0;  // as its own pid namespace numbers it; from find_processes, as /proc here does
  uint64_t started_realtime_ns = 0;
  uint64_t overflowed_series = 0;
  std::vector<SeriesSnapshot> series;  // those that counted nothing yet too, except "other"
};

// Counters go on changing while they are read: each number is right for some moment, their sum for none.
Snapshot read_snapshot(const Metrics& metrics);

// From a mapped file of any origin that can't shrink. Throws Error(kProtocol) naming what is wrong with it.
Snapshot read_snapshot(std::span<const uint8_t> file);

// From a descriptor of any origin: checks the seal, maps it read-only and reads. Throws Error.
Snapshot read_snapshot(int fd);

// All agents on this host whose counters this user may read, including this process's own: found by the links
// in /proc/*/fd. Ordered by pid, agent. Unreadable or invalid counters are skipped; a process that ends
// meanwhile is not an error. proc_root is for tests.
std::vector<Snapshot> find_processes(const std::string& proc_root = "/proc");

// With "latency_sum_ns" and "latency_buckets" in each series: [upper bound in ns, count] of those of the
// histogram that counted something, the bound UINT64_MAX for the last.
nlohmann::json with_histograms(const Snapshot& snapshot);

// For nlohmann::json: errors as {"PEER_LOST": 2} with only those that happened; histogram left out.
void to_json(nlohmann::json& json, const SeriesSnapshot& series);
void to_json(nlohmann::json& json, const Snapshot& snapshot);

}  // namespace towline
