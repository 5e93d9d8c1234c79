#include "telemetry/snapshot.h"

#include <towline/towline.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/check.h"
#include "base/error.h"

namespace towline {
namespace {

using counters::FileHeader;
using counters::Shard;
using counters::Slot;

// Length of the UTF-8 character at the start of text; 0 if it is not valid.
std::size_t utf8_length(std::string_view text) noexcept {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  const std::size_t length = first < 0x80   ? 1
                             : first < 0xc2 ? 0
                             : first < 0xe0 ? 2
                             : first < 0xf0 ? 3
                             : first < 0xf5 ? 4
                                            : 0;
  if (length == 0 || length > text.size()) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  if (length >= 3) {  // longer than needed, a surrogate, or beyond U+10FFFF
    if (first == 0xe0 && byte(1) < 0xa0) return 0;
    if (first == 0xed && byte(1) >= 0xa0) return 0;
    if (first == 0xf0 && byte(1) < 0x90) return 0;
    if (first == 0xf4 && byte(1) >= 0x90) return 0;
  }
  return length;
}

// A name that another process wrote: ends at the first zero byte or the field's end; what is not printable
// UTF-8 becomes '?', so that terminals and JSON can take it.
std::string clean_name(const volatile char* from, std::size_t bytes) {
  std::string raw;
  for (std::size_t i = 0; i < bytes; ++i) {
    const char c = from[i];
    if (c == '\0') break;
    raw += c;
  }
  std::string name;
  for (std::string_view rest = raw; !rest.empty();) {
    const std::size_t length = utf8_length(rest);
    const bool control = static_cast<unsigned char>(rest[0]) < 0x20 || rest[0] == 0x7f ||
                         (length == 2 && static_cast<unsigned char>(rest[0]) == 0xc2 &&
                          static_cast<unsigned char>(rest[1]) < 0xa0);
    if (length == 0 || control) {
      name += '?';
    } else {
      name += rest.substr(0, length);
    }
    rest.remove_prefix(std::max<std::size_t>(1, length));
  }
  return name;
}

uint64_t load(const std::atomic<uint64_t>& counter) noexcept {
  return counter.load(std::memory_order_relaxed);
}

void add_shard(SeriesSnapshot& to, const Shard& shard, uint64_t& latency_sum_ns) noexcept {
  to.bytes += load(shard.bytes);
  to.transfers += load(shard.transfers);
  to.blocks += load(shard.blocks);
  to.notices += load(shard.notices);
  to.served_bytes += load(shard.served_bytes);
  latency_sum_ns += load(shard.latency_sum_ns);
  to.latency_max_ns = std::max(to.latency_max_ns, load(shard.latency_max_ns));
  for (std::size_t i = 0; i < counters::kErrorCodes; ++i) to.errors[i] += load(shard.errors[i]);
  for (std::size_t i = 0; i < kLatencyBuckets; ++i) to.latency[i] += load(shard.latency[i]);
}

SeriesSnapshot read_slot(const Slot& slot) {
  SeriesSnapshot series;
  series.peer = clean_name(slot.peer, sizeof slot.peer);
  series.backend = clean_name(slot.backend, sizeof slot.backend);
  const uint32_t direction = *static_cast<const volatile uint32_t*>(&slot.direction);
  series.direction = direction == 0 ? Direction::kTx : Direction::kRx;
  for (const Shard& shard : slot.shards) add_shard(series, shard, series.latency_sum_ns);
  for (const uint64_t count : series.latency) series.measured += count;
  if (series.measured != 0) series.latency_mean_ns = series.latency_sum_ns / series.measured;
  series.latency_p50_ns = latency_quantile_ns(series.latency, 0.50, series.latency_max_ns);
  series.latency_p99_ns = latency_quantile_ns(series.latency, 0.99, series.latency_max_ns);
  return series;
}

bool counted_something(const SeriesSnapshot& series) noexcept {
  return series.transfers != 0 || series.notices != 0 || series.bytes != 0 || series.served_bytes != 0 ||
         std::any_of(series.errors.begin(), series.errors.end(), [](uint64_t count) { return count != 0; });
}

// How many slots of the file may be read. Throws unless its layout is exactly ours.
uint32_t check_header(const FileHeader& header, std::size_t file_bytes) {
  // Everything here may change while it is looked at: each field is read once.
  const auto field = [](const auto& value) {
    return *static_cast<const volatile std::remove_reference_t<decltype(value)>*>(&value);
  };
  const uint64_t magic = header.magic.load(std::memory_order_acquire);
  const uint32_t version = field(header.version);
  const uint32_t max_series = field(header.max_series);
  const uint32_t used = header.used_series.load(std::memory_order_acquire);
  if (magic != counters::kMagic) fail(Status::kProtocol, "counters: magic number {:#x}", magic);
  if (version != counters::kVersion || field(header.header_bytes) != counters::kPageBytes ||
      field(header.slot_bytes) != sizeof(Slot) || field(header.shards) != counters::kShards ||
      field(header.latency_buckets) != kLatencyBuckets) {
    fail(Status::kProtocol, "counters: layout version {} where {} is known", version, counters::kVersion);
  }
  if (max_series > counters::kMostSeries || counters::file_bytes(max_series) > file_bytes ||
      used > max_series) {
    fail(Status::kProtocol, "counters: {} of {} series in a file of {} bytes", used, max_series, file_bytes);
  }
  return used;
}

const char* direction_name(Direction direction) noexcept { return direction == Direction::kTx ? "tx" : "rx"; }

}  // namespace

Snapshot read_snapshot(std::span<const uint8_t> file) {
  if (file.size() < counters::kPageBytes)
    fail(Status::kProtocol, "counters: a file of {} bytes", file.size());
  TOWLINE_CHECK(reinterpret_cast<uintptr_t>(file.data()) % alignof(Slot) == 0);
  const auto& header = *reinterpret_cast<const FileHeader*>(file.data());
  const uint32_t used = check_header(header, file.size());
  Snapshot snapshot;
  snapshot.agent = clean_name(header.agent, sizeof header.agent);
  snapshot.incarnation = {header.incarnation_hi, header.incarnation_lo};
  snapshot.pid = header.pid;
  snapshot.started_realtime_ns = header.started_realtime_ns;
  snapshot.overflowed_series = load(header.overflowed_series);
  const auto* slots = reinterpret_cast<const Slot*>(file.data() + counters::kPageBytes);
  for (uint32_t i = 0; i < used; ++i) {
    SeriesSnapshot series = read_slot(slots[i]);
    const bool is_other = i < 2;
    if (!is_other || counted_something(series)) snapshot.series.push_back(std::move(series));
  }
  return snapshot;
}

Snapshot read_snapshot(const Metrics& metrics) { return read_snapshot(metrics.mapping().span()); }

Snapshot read_snapshot(int fd) {
  require_sealed(fd, counters::kPageBytes);
  const uint64_t bytes = file_bytes(fd);
  if (bytes > counters::file_bytes(counters::kMostSeries)) {
    fail(Status::kProtocol, "counters: a file of {} bytes", bytes);
  }
  const Mapping mapping = Mapping::map_shared(fd, bytes, MapAccess::kRead);
  return read_snapshot(mapping.span());
}

void to_json(nlohmann::json& json, const SeriesSnapshot& series) {
  nlohmann::json errors = nlohmann::json::object();
  for (std::size_t code = 0; code < series.errors.size(); ++code) {
    if (series.errors[code] == 0) continue;
    errors[status_name(static_cast<Status>(-static_cast<int32_t>(code)))] = series.errors[code];
  }
  json = nlohmann::json{{"peer", series.peer},
                        {"backend", series.backend},
                        {"direction", direction_name(series.direction)},
                        {"bytes", series.bytes},
                        {"transfers", series.transfers},
                        {"blocks", series.blocks},
                        {"notices", series.notices},
                        {"served_bytes", series.served_bytes},
                        {"errors", std::move(errors)},
                        {"measured", series.measured},
                        {"latency_mean_ns", series.latency_mean_ns},
                        {"latency_p50_ns", series.latency_p50_ns},
                        {"latency_p99_ns", series.latency_p99_ns},
                        {"latency_max_ns", series.latency_max_ns}};
}

void to_json(nlohmann::json& json, const Snapshot& snapshot) {
  json = nlohmann::json{{"schema", TOWLINE_JSON_SCHEMA},
                        {"agent", snapshot.agent},
                        {"incarnation", snapshot.incarnation.to_hex()},
                        {"pid", snapshot.pid},
                        {"started_realtime_ns", snapshot.started_realtime_ns},
                        {"overflowed_series", snapshot.overflowed_series},
                        {"series", snapshot.series}};
}

nlohmann::json with_histograms(const Snapshot& snapshot) {
  nlohmann::json json = snapshot;
  for (std::size_t i = 0; i < snapshot.series.size(); ++i) {
    const SeriesSnapshot& series = snapshot.series[i];
    nlohmann::json buckets = nlohmann::json::array();
    for (std::size_t bucket = 0; bucket < kLatencyBuckets; ++bucket) {
      if (series.latency[bucket] == 0) continue;
      const uint64_t bound = bucket + 1 < kLatencyBuckets ? latency_bucket_start_ns(bucket + 1) : UINT64_MAX;
      buckets.push_back({bound, series.latency[bucket]});
    }
    json["series"][i]["latency_sum_ns"] = series.latency_sum_ns;
    json["series"][i]["latency_buckets"] = std::move(buckets);
  }
  return json;
}

}  // namespace towline
