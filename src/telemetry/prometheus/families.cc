#include "telemetry/prometheus/families.h"

#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

namespace towline::telemetry {
namespace {

using nlohmann::json;
using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

using Labels = std::map<std::string, std::string>;

// Powers of two from about a microsecond to about 17 s: what is counted finer is added up.
constexpr unsigned kFirstBoundBits = 10;
constexpr unsigned kLastBoundBits = 34;
constexpr std::size_t kBounds = kLastBoundBits - kFirstBoundBits + 1;

struct Latencies {
  std::array<uint64_t, kBounds + 1> counts{};  // the last: beyond all bounds
  double sum_s = 0;
};

struct Totals {
  std::map<Labels, double> bytes, served_bytes, transfers, blocks, notices, errors;
  std::map<Labels, double> info, started, overflowed;
  std::map<Labels, Latencies> latencies;
};

std::string text(const json& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end()) return "";
  return found->is_string() ? found->get<std::string>() : found->is_number() ? found->dump() : "";
}

double number(const json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_number() ? found->get<double>() : 0.0;
}

void add_latencies(const json& series, Latencies& to) {
  to.sum_s += number(series, "latency_sum_ns") * 1e-9;
  const auto buckets = series.find("latency_buckets");
  if (buckets == series.end() || !buckets->is_array()) return;
  for (const json& bucket : *buckets) {
    if (!bucket.is_array() || bucket.size() != 2 || !bucket[0].is_number_unsigned() ||
        !bucket[1].is_number_unsigned()) {
      continue;
    }
    const auto upper_ns = bucket[0].get<uint64_t>();
    std::size_t bound = 0;
    while (bound < kBounds && uint64_t{1} << (kFirstBoundBits + bound) < upper_ns) ++bound;
    to.counts[bound] += bucket[1].get<uint64_t>();
  }
}

void add_series(const json& series, Labels labels, Totals& totals) {
  labels["peer"] = text(series, "peer");
  labels["backend"] = text(series, "backend");
  labels["direction"] = text(series, "direction");
  totals.bytes[labels] += number(series, "bytes");
  totals.transfers[labels] += number(series, "transfers");
  totals.blocks[labels] += number(series, "blocks");
  totals.notices[labels] += number(series, "notices");
  totals.served_bytes[labels] += number(series, "served_bytes");
  add_latencies(series, totals.latencies[labels]);
  const auto errors = series.find("errors");
  if (errors == series.end() || !errors->is_object()) return;
  for (const auto& [status, count] : errors->items()) {
    labels["status"] = status;
    if (count.is_number()) totals.errors[labels] += count.get<double>();
  }
}

void add_agent(const json& agent, Totals& totals) {
  Labels labels = {{"agent", text(agent, "agent")}, {"pid", text(agent, "pid")}};
  totals.started[labels] = number(agent, "started_realtime_ns") * 1e-9;
  totals.overflowed[labels] += number(agent, "overflowed_series");
  Labels with_incarnation = labels;
  with_incarnation["incarnation"] = text(agent, "incarnation");
  totals.info[with_incarnation] = 1;
  const auto series = agent.find("series");
  if (series == agent.end() || !series->is_array()) return;
  for (const json& one : *series) {
    if (one.is_object()) add_series(one, labels, totals);
  }
}

ClientMetric labelled(const Labels& labels) {
  ClientMetric metric;
  for (const auto& [name, value] : labels) metric.label.push_back({name, value});
  return metric;
}

MetricFamily family(const char* name, const char* help, MetricType type,
                    const std::map<Labels, double>& values) {
  MetricFamily result{name, help, type, {}};
  for (const auto& [labels, value] : values) {
    ClientMetric metric = labelled(labels);
    (type == MetricType::Counter ? metric.counter.value : metric.gauge.value) = value;
    result.metric.push_back(std::move(metric));
  }
  return result;
}

MetricFamily latency_family(const std::map<Labels, Latencies>& values) {
  MetricFamily result{"towline_transfer_latency_seconds",
                      "Time from post to outcome of transfers that are timed",
                      MetricType::Histogram,
                      {}};
  for (const auto& [labels, latencies] : values) {
    ClientMetric metric = labelled(labels);
    uint64_t below = 0;
    for (std::size_t bound = 0; bound <= kBounds; ++bound) {
      below += latencies.counts[bound];
      const double upper_s = bound < kBounds
                                 ? static_cast<double>(uint64_t{1} << (kFirstBoundBits + bound)) * 1e-9
                                 : std::numeric_limits<double>::infinity();
      metric.histogram.bucket.push_back({below, upper_s});
    }
    metric.histogram.sample_count = below;
    metric.histogram.sample_sum = latencies.sum_s;
    result.metric.push_back(std::move(metric));
  }
  return result;
}

// ---- Families that applications add

// At most this many buckets, so that a page stays small whatever an application says.
constexpr std::size_t kMostBuckets = 256;

bool read_value(const json& metric, MetricType type, ClientMetric& into) {
  if (type != MetricType::Histogram) {
    const auto value = metric.find("value");
    if (value == metric.end() || !value->is_number()) return false;
    (type == MetricType::Counter ? into.counter.value : into.gauge.value) = value->get<double>();
    return true;
  }
  const auto bounds = metric.find("bounds");
  const auto counts = metric.find("counts");
  if (bounds == metric.end() || counts == metric.end() || !bounds->is_array() || !counts->is_array() ||
      counts->size() != bounds->size() + 1 || counts->size() > kMostBuckets) {
    return false;
  }
  uint64_t below = 0;
  for (std::size_t i = 0; i < counts->size(); ++i) {
    const json& count = (*counts)[i];
    const bool last = i == bounds->size();
    if (!count.is_number_unsigned() || (!last && !(*bounds)[i].is_number())) return false;
    below += count.get<uint64_t>();
    into.histogram.bucket.push_back(
        {below, last ? std::numeric_limits<double>::infinity() : (*bounds)[i].get<double>()});
  }
  into.histogram.sample_count = below;
  into.histogram.sample_sum = number(metric, "sum");
  return true;
}

void add_own_family(const json& source, std::map<std::string, MetricFamily>& families) {
  const std::string name = source.is_object() ? text(source, "name") : "";
  const std::string kind = name.empty() ? "" : text(source, "type");
  const auto metrics = name.empty() ? source.end() : source.find("metrics");
  const bool known = kind == "counter" || kind == "gauge" || kind == "histogram";
  if (!known || metrics == source.end() || !metrics->is_array()) return;
  const MetricType type = kind == "counter" ? MetricType::Counter
                          : kind == "gauge" ? MetricType::Gauge
                                            : MetricType::Histogram;
  MetricFamily& family =
      families.try_emplace(name, MetricFamily{name, text(source, "help"), type, {}}).first->second;
  if (family.type != type) return;
  for (const json& metric : *metrics) {
    if (!metric.is_object()) continue;
    Labels labels;
    if (const auto given = metric.find("labels"); given != metric.end() && given->is_object()) {
      for (const auto& [label, value] : given->items())
        if (value.is_string()) labels[label] = value.get<std::string>();
    }
    ClientMetric made = labelled(labels);
    if (read_value(metric, type, made)) family.metric.push_back(std::move(made));
  }
}

std::map<std::string, MetricFamily> own_families(const json& entries) {
  std::map<std::string, MetricFamily> families;
  if (!entries.is_array()) return families;
  for (const json& entry : entries) {
    const auto found = entry.is_object() ? entry.find("families") : entry.end();
    if (found == entry.end() || !found->is_array()) continue;
    for (const json& family : *found) add_own_family(family, families);
  }
  return families;
}

std::vector<MetricFamily> with_own(std::vector<MetricFamily> families, const json& entries) {
  for (auto& [name, family] : own_families(entries)) families.push_back(std::move(family));
  return families;
}

}  // namespace

std::vector<MetricFamily> make_families(std::string_view counters) {
  const json agents = json::parse(counters, nullptr, false);
  Totals totals;
  if (agents.is_array()) {
    for (const json& agent : agents) {
      if (agent.is_object() && !agent.contains("families")) add_agent(agent, totals);
    }
  }
  using enum MetricType;
  std::vector<MetricFamily> families = {
      family("towline_agent_info", "Which agents there are", Gauge, totals.info),
      family("towline_agent_start_time_seconds", "When the agent was made, in seconds since 1970", Gauge,
             totals.started),
      family("towline_bytes_total", "Bytes moved for certain", Counter, totals.bytes),
      family("towline_served_bytes_total", "Bytes that peers moved by transfers of theirs, over framed paths",
             Counter, totals.served_bytes),
      family("towline_transfers_total", "Transfers that ended well", Counter, totals.transfers),
      family("towline_blocks_total", "Blocks in them", Counter, totals.blocks),
      family("towline_notices_total", "Notices sent or received", Counter, totals.notices),
      family("towline_errors_total", "Transfers and messages that failed, by status", Counter, totals.errors),
      family("towline_series_overflow_total", "Series counted as peer \"other\" for want of room", Counter,
             totals.overflowed),
      latency_family(totals.latencies)};
  return with_own(std::move(families), agents);
}

}  // namespace towline::telemetry
