#include "telemetry_counts.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <ctime>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

namespace towline::nixl {

namespace {

using nlohmann::json;
using Event = nixl_telemetry_event_type_t;

constexpr std::memory_order kRelaxed = std::memory_order_relaxed;

template <size_t Bytes>
void set_name(char (&into)[Bytes], const std::string& from) {
  const size_t bytes = std::min(from.size(), Bytes - 1);
  std::memcpy(into, from.data(), bytes);
  into[bytes] = 0;
}

template <size_t Bytes>
std::string name_in(const char (&from)[Bytes]) {
  return {from, ::strnlen(from, Bytes)};
}

void add_to_histogram(TelemetryCounts& counts, TelemetryCounts::Histogram& histogram, uint64_t us) noexcept {
  const double* const begin = counts.bounds;
  const double* const end = begin + std::min<uint64_t>(counts.bound_count, kMostBounds);
  const double* const bound = std::lower_bound(begin, end, static_cast<double>(us));
  histogram.counts[bound - begin].fetch_add(1, kRelaxed);
}

json labels_of(const CountsSnapshot& snapshot, bool by_process) {
  json labels = {{"hostname", snapshot.identity.host}, {"agent_name", snapshot.identity.agent}};
  if (!by_process) return labels;
  labels["pid"] = std::to_string(snapshot.pid);
  labels["agent_instance"] = std::to_string(snapshot.instance);
  if (!snapshot.identity.rank.empty()) labels["local_rank"] = snapshot.identity.rank;
  return labels;
}

json family(const char* name, const char* type, const char* help) {
  return {{"name", name}, {"type", type}, {"help", help}, {"metrics", json::array()}};
}

// Agents of one process and name under one label.
std::vector<CountsSnapshot> add_up(std::span<const CountsSnapshot> snapshots) {
  std::map<std::string, CountsSnapshot> by_name;
  for (const CountsSnapshot& snapshot : snapshots) {
    const auto [at, added] = by_name.try_emplace(snapshot.identity.agent, snapshot);
    CountsSnapshot& sum = at->second;
    if (added || sum.bounds != snapshot.bounds) continue;
    for (size_t i = 0; i < kEvents; ++i) {
      sum.totals[i] += snapshot.totals[i];
      sum.events[i] += snapshot.events[i];
      sum.lasts[i] = snapshot.events[i] != 0 ? snapshot.lasts[i] : sum.lasts[i];
    }
    for (size_t i = 0; i < sum.transfer_time.size(); ++i) {
      sum.transfer_time[i] += snapshot.transfer_time[i];
      sum.post_time[i] += snapshot.post_time[i];
    }
  }
  std::vector<CountsSnapshot> all;
  for (auto& [name, sum] : by_name) all.push_back(std::move(sum));
  return all;
}

bool is_enabled(const CountsSnapshot& snapshot, size_t event) { return (snapshot.enabled >> event & 1) != 0; }

void add_event(json& families, Event type, std::span<const CountsSnapshot> snapshots, bool by_process) {
  const nixlTelemetryMetricDescriptor names = nixlEnumStrings::telemetryMetricDescriptor(type);
  json counter = family(names.counterName, "counter", names.counterHelp);
  json gauge = names.gaugeName == nullptr ? json{} : family(names.gaugeName, "gauge", names.gaugeHelp);
  json histogram =
      names.histogramName == nullptr ? json{} : family(names.histogramName, "histogram", names.histogramHelp);
  const auto event = static_cast<size_t>(type);
  for (const CountsSnapshot& snapshot : snapshots) {
    if (!is_enabled(snapshot, event)) continue;
    const json labels = labels_of(snapshot, by_process);
    counter["metrics"].push_back({{"labels", labels}, {"value", snapshot.totals[event]}});
    if (names.gaugeName != nullptr)
      gauge["metrics"].push_back({{"labels", labels}, {"value", snapshot.lasts[event]}});
    if (names.histogramName == nullptr) continue;
    const bool whole = type == Event::AGENT_XFER_TIME;
    histogram["metrics"].push_back({{"labels", labels},
                                    {"bounds", snapshot.bounds},
                                    {"counts", whole ? snapshot.transfer_time : snapshot.post_time},
                                    {"sum", snapshot.totals[event]}});
  }
  families.push_back(std::move(counter));
  if (names.gaugeName != nullptr) families.push_back(std::move(gauge));
  if (names.histogramName != nullptr) families.push_back(std::move(histogram));
}

void add_errors(json& families, std::span<const CountsSnapshot> snapshots, bool by_process) {
  json errors = family(telemetry_error_family_name, "counter", telemetry_error_family_help);
  for (const CountsSnapshot& snapshot : snapshots) {
    for (const Event type : telemetry_error_event_types) {
      const auto event = static_cast<size_t>(type);
      if (!is_enabled(snapshot, event)) continue;
      json labels = labels_of(snapshot, by_process);
      labels["status"] = nixlEnumStrings::telemetryErrorStatusLabel(type);
      errors["metrics"].push_back({{"labels", std::move(labels)}, {"value", snapshot.totals[event]}});
    }
  }
  families.push_back(std::move(errors));
}

}  // namespace

void begin_counts(TelemetryCounts& counts, const TelemetryIdentity& identity, std::span<const double> bounds,
                  uint64_t enabled) {
  static std::atomic<uint64_t> last_instance{0};
  counts.bound_count = std::min(bounds.size(), kMostBounds);
  std::copy_n(bounds.begin(), counts.bound_count, counts.bounds);
  counts.enabled = enabled;
  set_name(counts.host, identity.host);
  set_name(counts.agent, identity.agent);
  set_name(counts.rank, identity.rank);
  counts.pid = static_cast<uint64_t>(::getpid());
  counts.instance = last_instance++;
  counts.updated_s.store(std::time(nullptr), kRelaxed);
  counts.magic.store(TelemetryCounts::kMagic, std::memory_order_release);
}

void count_event(TelemetryCounts& counts, Event type, uint64_t value) noexcept {
  const auto event = static_cast<size_t>(type);
  counts.totals[event].fetch_add(value, kRelaxed);
  counts.lasts[event].store(value, kRelaxed);
  counts.events[event].fetch_add(1, kRelaxed);
  if (type == Event::AGENT_XFER_TIME) add_to_histogram(counts, counts.transfer_time, value);
  if (type == Event::AGENT_XFER_POST_TIME) add_to_histogram(counts, counts.post_time, value);
}

std::optional<CountsSnapshot> read_counts(const TelemetryCounts& counts) {
  if (counts.magic.load(std::memory_order_acquire) != TelemetryCounts::kMagic) return std::nullopt;
  if (counts.bound_count > kMostBounds) return std::nullopt;
  CountsSnapshot snapshot;
  snapshot.identity = {name_in(counts.host), name_in(counts.agent), name_in(counts.rank)};
  snapshot.pid = counts.pid;
  snapshot.instance = counts.instance;
  snapshot.enabled = counts.enabled;
  snapshot.updated_s = counts.updated_s.load(kRelaxed);
  snapshot.bounds.assign(counts.bounds, counts.bounds + counts.bound_count);
  // JSON has no infinities and no NaN.
  if (!std::ranges::all_of(snapshot.bounds, [](double bound) { return std::isfinite(bound); }))
    return std::nullopt;
  for (size_t i = 0; i < kEvents; ++i) {
    snapshot.totals[i] = counts.totals[i].load(kRelaxed);
    snapshot.lasts[i] = counts.lasts[i].load(kRelaxed);
    snapshot.events[i] = counts.events[i].load(kRelaxed);
  }
  for (size_t i = 0; i <= counts.bound_count; ++i) {
    snapshot.transfer_time.push_back(counts.transfer_time.counts[i].load(kRelaxed));
    snapshot.post_time.push_back(counts.post_time.counts[i].load(kRelaxed));
  }
  return snapshot;
}

std::optional<CountsSnapshot> read_counts(std::span<const std::byte> file) {
  if (file.size() != sizeof(TelemetryCounts)) return std::nullopt;
  const auto counts = std::make_unique<TelemetryCounts>();
  std::memcpy(static_cast<void*>(counts.get()), file.data(), file.size());
  return read_counts(*counts);
}

json families_of(std::span<const CountsSnapshot> snapshots, bool by_process) {
  std::vector<CountsSnapshot> summed;
  if (!by_process) {
    summed = add_up(snapshots);
    snapshots = summed;
  }
  json families = json::array();
  for (const Event type : telemetry_metric_event_types) add_event(families, type, snapshots, by_process);
  add_errors(families, snapshots, by_process);
  return families;
}

}  // namespace towline::nixl
