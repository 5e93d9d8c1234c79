#include "settings.h"

#include <common/configuration.h>
#include <fnmatch.h>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <span>
#include <stdexcept>
#include <thread>
#include <vector>

#include "config_file.h"
#include "split.h"

namespace towline::nixl {

namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): read while an agent is made
  return value == nullptr ? std::string{} : value;
}

std::string lower(std::string_view text) {
  std::string result{text};
  std::ranges::transform(result, result.begin(), [](unsigned char c) {
    return static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  });
  return result;
}

ConfigFile find_config_file() {
  if (const std::string named = variable("NIXL_CONFIG_FILE"); !named.empty()) return ConfigFile::read(named);
  const std::string home = variable("HOME");
  for (const std::string& file : {home.empty() ? home : home + "/.nixl.cfg", std::string{"/etc/nixl.cfg"}}) {
    std::error_code ignored;
    if (!file.empty() && std::filesystem::exists(file, ignored)) return ConfigFile::read(file);
  }
  return {};
}

struct Value {
  std::string text;  // empty: not set
  std::string source;

  [[noreturn]] void refuse(const char* name, const char* expected) const {
    throw std::runtime_error(fmt::format("{}: {} is '{}', and should be {}", source, name, text, expected));
  }
};

class Source {
 public:
  // The value from the environment, else from the file.
  [[nodiscard]] Value get(const char* name) const {
    std::string text = variable(name);
    if (!text.empty()) return {std::move(text), "the environment"};
    return {file_.find(name).value_or(""), "the configuration file " + file_.name()};
  }

  [[nodiscard]] std::optional<bool> flag(const char* name) const {
    const Value value = get(name);
    const std::string text = lower(value.text);
    if (text.empty()) return std::nullopt;
    for (const char* yes : {"1", "y", "yes", "on", "true", "enable"}) {
      if (text == yes) return true;
    }
    for (const char* no : {"0", "n", "no", "off", "false", "disable"}) {
      if (text == no) return false;
    }
    value.refuse(name, "yes or no");
  }

  void duration(const char* name, std::chrono::nanoseconds& into) const {
    const Value value = get(name);
    if (value.text.empty()) return;
    const auto parsed = parse_duration(value.text);
    if (!parsed) value.refuse(name, "a time such as 30s or 500ms");
    into = *parsed;
  }

  [[nodiscard]] size_t number(const char* name, size_t otherwise, size_t most) const {
    const Value value = get(name);
    if (value.text.empty()) return otherwise;
    size_t number = 0;
    const char* const end = value.text.data() + value.text.size();
    const auto [stopped, error] = std::from_chars(value.text.data(), end, number);
    if (error != std::errc{} || stopped != end || number > most)
      value.refuse(name, fmt::format("a number from 0 to {}", most).c_str());
    return number;
  }

 private:
  ConfigFile file_ = find_config_file();
};

std::string toml_text(std::string_view text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    if (static_cast<unsigned char>(c) >= ' ') result += c;
  }
  return result + '"';
}

// Towline reads the environment's TOWLINE_ETCD_*, NIXL_ETCD_ENDPOINTS and NIXL_ETCD_NAMESPACE itself, its own
// first. Values that only NIXL's file has are passed to it.
void read_etcd(const Source& source, Settings& settings) {
  constexpr std::array kNames = {
      std::array{"TOWLINE_ETCD_ENDPOINTS", "NIXL_ETCD_ENDPOINTS", "etcd.endpoints"},
      std::array{"TOWLINE_ETCD_NAMESPACE", "NIXL_ETCD_NAMESPACE", "etcd.namespace"}};
  for (const auto& [ours, theirs, key] : kNames) {
    const bool in_environment = !variable(ours).empty() || !variable(theirs).empty();
    const std::string text = in_environment ? std::string{} : source.get(theirs).text;
    if (!text.empty()) settings.towline += fmt::format("{} = {}\n", key, toml_text(text));
    if (ours == kNames[0][0]) settings.has_etcd = in_environment || !text.empty();
  }
}

std::vector<std::string_view> split(std::string_view list) {
  std::vector<std::string_view> parts;
  while (!list.empty()) {
    const size_t comma = list.find(',');
    std::string_view part = list.substr(0, comma);
    if (part.starts_with('\\')) part.remove_prefix(1);  // "exactly this one"
    if (!part.empty()) parts.push_back(part);
    list = comma == std::string_view::npos ? std::string_view{} : list.substr(comma + 1);
  }
  return parts;
}

void read_tcp_store(const Source& source, Settings& settings) {
  settings.tcp_store = source.get("NIXL_TCPSTORE_ENDPOINT").text;
  if (settings.tcp_store.empty()) return;
  if (settings.has_etcd)
    throw std::runtime_error("NIXL_TCPSTORE_ENDPOINT and NIXL_ETCD_ENDPOINTS are both set; keep one");
  constexpr size_t kMostMs = 86'400'000;
  using std::chrono::milliseconds;
  settings.tcp_store_connect_timeout =
      milliseconds{source.number("NIXL_TCPSTORE_TIMEOUT_MS", 30'000, kMostMs)};
  settings.tcp_store_timeout = milliseconds{source.number("NIXL_TCPSTORE_OP_TIMEOUT_MS", 5'000, kMostMs)};
}

// ---- Telemetry

constexpr const char* kBounds = "strictly ascending positive numbers, such as 10,100,1000, at most 64";

std::vector<double> read_bounds(const Source& source) {
  const Value value = source.get("NIXL_TELEMETRY_HISTOGRAM_BUCKETS_US");
  if (value.text.empty()) {
    return {10,    25,    50,    100,    250,    500,    1000,    2500,    5000,
            10000, 25000, 50000, 100000, 250000, 500000, 1000000, 5000000, 10000000};
  }
  std::vector<double> bounds;
  for (std::string_view part : split(value.text)) {
    while (part.starts_with(' ')) part.remove_prefix(1);
    while (part.ends_with(' ')) part.remove_suffix(1);
    double bound = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), bound);
    if (error != std::errc{} || end != part.data() + part.size() || !std::isfinite(bound) ||
        bound <= (bounds.empty() ? 0 : bounds.back()) || bounds.size() == kMostBounds)
      value.refuse("NIXL_TELEMETRY_HISTOGRAM_BUCKETS_US", kBounds);
    bounds.push_back(bound);
  }
  if (bounds.empty()) value.refuse("NIXL_TELEMETRY_HISTOGRAM_BUCKETS_US", kBounds);
  return bounds;
}

// The events that are exported, a bit each: all, or those that one of the patterns names.
uint64_t read_enabled(const Source& source) {
  const Value value = source.get("NIXL_TELEMETRY_ENABLED_METRICS");
  uint64_t enabled = 0;
  bool limited = false;
  for (std::string_view part : split(value.text)) {
    while (part.starts_with(' ')) part.remove_prefix(1);
    while (part.ends_with(' ')) part.remove_suffix(1);
    if (part.empty()) continue;
    limited = true;
    const std::string pattern{part};
    const uint64_t before = enabled;
    for (size_t event = 0; event < kEvents; ++event) {
      const std::string name{
          nixlEnumStrings::telemetryEventTypeStr(static_cast<nixl_telemetry_event_type_t>(event))};
      if (::fnmatch(pattern.c_str(), name.c_str(), 0) == 0) enabled |= uint64_t{1} << event;
    }
    if (enabled == before)
      log(LogLevel::kWarning, fmt::format("NIXL_TELEMETRY_ENABLED_METRICS: '{}' names no metric", pattern));
  }
  return limited ? enabled : ~uint64_t{0};
}

void read_buffer(const Source& source, TelemetrySettings& output) {
  output.exporter = TelemetryExporter::kBuffer;
  output.directory = source.get("NIXL_TELEMETRY_DIR").text;
  if (output.directory.empty())
    throw std::runtime_error("NIXL_TELEMETRY_EXPORTER is 'BUFFER', and needs NIXL_TELEMETRY_DIR");
  output.buffer_events = source.number("NIXL_TELEMETRY_BUFFER_SIZE", output.buffer_events, size_t{1} << 24);
  if (output.buffer_events < 2 || !std::has_single_bit(output.buffer_events))
    source.get("NIXL_TELEMETRY_BUFFER_SIZE").refuse("NIXL_TELEMETRY_BUFFER_SIZE", "a power of two from 2 on");
}

void read_prometheus(const Source& source, TelemetrySettings& output, bool of_all) {
  constexpr uint16_t kTheirPort = 9090;
  constexpr size_t kMostSeconds = 7 * 86400;
  output.exporter = of_all ? TelemetryExporter::kPrometheusOfAll : TelemetryExporter::kPrometheus;
  const bool local = source.flag("NIXL_TELEMETRY_PROMETHEUS_LOCAL").value_or(false);
  output.address = fmt::format("{}:{}", local ? "127.0.0.1" : "0.0.0.0",
                               source.number("NIXL_TELEMETRY_PROMETHEUS_PORT", kTheirPort, 65535));
  output.bounds = read_bounds(source);
  if (!of_all) return;
  output.directory = source.get("NIXL_TELEMETRY_MULTIPROC_DIR").text;
  if (output.directory.empty()) {
    throw std::runtime_error(
        "NIXL_TELEMETRY_EXPORTER is 'prometheus_mp', and needs NIXL_TELEMETRY_MULTIPROC_DIR: a directory "
        "that all "
        "processes share");
  }
  output.stale_s = static_cast<int64_t>(
      source.number("NIXL_TELEMETRY_MP_STALE_TTL", static_cast<size_t>(output.stale_s), kMostSeconds));
  const std::string rank = source.get("NIXL_TELEMETRY_RANK_ENV").text;
  output.rank = variable(rank.empty() ? "LOCAL_RANK" : rank.c_str());
}

// A plugin's own settings are the plugin's to read.
void read_exporter_plugin(const Source& source, TelemetrySettings& output, const std::string& name) {
  constexpr size_t kMostEvents = size_t{1} << 24;
  constexpr size_t kMostMs = 3'600'000;
  output.exporter = TelemetryExporter::kPlugin;
  output.plugin = name;
  output.buffer_events = source.number("NIXL_TELEMETRY_BUFFER_SIZE", output.buffer_events, kMostEvents);
  if (output.buffer_events < 4)
    source.get("NIXL_TELEMETRY_BUFFER_SIZE").refuse("NIXL_TELEMETRY_BUFFER_SIZE", "a number from 4 on");
  output.interval = std::chrono::milliseconds{
      source.number("NIXL_TELEMETRY_RUN_INTERVAL", static_cast<size_t>(output.interval.count()), kMostMs)};
  if (output.interval.count() == 0)
    source.get("NIXL_TELEMETRY_RUN_INTERVAL").refuse("NIXL_TELEMETRY_RUN_INTERVAL", "milliseconds from 1 on");
}

void read_telemetry(const Source& source, Settings& settings) {
  settings.telemetry = source.flag("NIXL_TELEMETRY_ENABLE");
  if (settings.telemetry == false) return;
  const std::string name = source.get("NIXL_TELEMETRY_EXPORTER").text;
  const std::string exporter = lower(name);
  if (std::ranges::find(settings.plugins, name) != settings.plugins.end()) {
    read_exporter_plugin(source, settings.output, name);
  } else if (exporter == "buffer" || (exporter.empty() && !source.get("NIXL_TELEMETRY_DIR").text.empty())) {
    read_buffer(source, settings.output);
  } else if (exporter == "prometheus" || exporter == "prometheus_mp") {
    read_prometheus(source, settings.output, exporter == "prometheus_mp");
  } else if (!exporter.empty() && exporter != "nop") {
    read_exporter_plugin(source, settings.output, name);
  }
  settings.output.enabled = read_enabled(source);
}

// Towline's transports by the names of UCX's equivalents, in the order in which they are tried. "cuda" moves GPU
// memory of one host, and lets tcp reach GPU memory.
struct Transport {
  const char* name;
  std::array<std::string_view, 8> theirs;
};
constexpr Transport kTransports[] = {
    {"memory", {"self", "loopback"}},
    {"shm", {"shm", "sm", "mm", "posix", "sysv", "cma", "knem", "xpmem"}},
    {"cuda", {"cuda", "gdr"}},
    {"tcp", {"tcp"}},
};

bool named(const Transport& transport, std::span<const std::string_view> names) {
  return std::ranges::any_of(names, [&](std::string_view name) {
    return std::ranges::any_of(transport.theirs, [&](std::string_view their) {
      return !their.empty() && (name == their || name.substr(0, name.find('_')) == their);
    });
  });
}

}  // namespace

std::string transports_of_ucx_tls(std::string_view tls) {
  const bool all_but = tls.starts_with('^');
  if (all_but) tls.remove_prefix(1);
  const auto names = split(tls);
  const auto has = [&](std::string_view name) { return std::ranges::find(names, name) != names.end(); };
  if (names.empty() || has("all")) return {};
  // Those two go by host memory, so tcp is to be used where it was named beside them.
  const bool only_copies = !all_but && !has("cuda") && !has("cuda_ipc");
  std::string result;
  // Placed first, the memory transport would also be used between two agents of one process, before the
  // requested one.
  std::string last;
  bool limits = false;
  bool reaches_others = false;
  for (const Transport& transport : kTransports) {
    const bool listed = named(transport, names);
    const std::string_view name = transport.name;
    const bool self = name == "memory";
    // Transfers within an agent are always allowed.
    const bool allowed = listed != all_but || self;
    limits = limits || !allowed;
    if (!allowed) continue;
    reaches_others = reaches_others || (!self && name != "cuda");  // which needs another for host memory
    std::string& place = self || (name == "cuda" && only_copies) ? last : result;
    place += fmt::format(",{}", name);
  }
  if (!limits || !reaches_others) return {};
  return result.substr(1) + last;
}

std::optional<std::chrono::nanoseconds> parse_duration(std::string_view text) noexcept {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || !(value > 0)) return std::nullopt;
  const std::string_view unit = text.substr(static_cast<size_t>(end - text.data()));
  double scale = 0;
  if (unit == "ns") scale = 1;
  if (unit == "us") scale = 1e3;
  if (unit == "ms") scale = 1e6;
  if (unit == "s") scale = 1e9;
  if (unit == "min") scale = 60e9;
  value *= scale;
  if (value < 1 || value > 9e18) return std::nullopt;
  return std::chrono::nanoseconds{static_cast<int64_t>(value)};
}

Settings Settings::read() {
  const Source source;
  Settings settings;
  // Making a request does not wait for a peer that hangs, as with NIXL, where connections come up in the
  // background.
  if (variable("TOWLINE_TUNING_CONNECTION_WAIT").empty())
    settings.towline = "tuning.connection.wait = \"1s\"\n";
  // A second engine, which sleeps until a large request is split (see agent_lists.cc).
  if (variable("TOWLINE_WORKERS").empty() && std::thread::hardware_concurrency() > 1)
    settings.towline += kSplitConfig;
  settings.has_listen = !variable("TOWLINE_LISTEN").empty();
  settings.backends = source.get("TOWLINE_NIXL_BACKENDS").text;
  settings.real_ucx = source.flag("TOWLINE_NIXL_UCX").value_or(false);
  settings.ucx_tls = variable("UCX_TLS");
  if (settings.backends.empty()) {
    const std::string& tls = settings.ucx_tls;
    settings.backends = transports_of_ucx_tls(tls);
    // The variable does not cover files.
    if (!settings.backends.empty()) settings.backends += ",posix";
    if (settings.backends.empty() && !tls.empty() && tls != "all") {
      log(LogLevel::kInfo, "UCX_TLS=" + tls + " names no transport that is here, and limits nothing");
    }
  }
  source.duration("TOWLINE_NIXL_TIMEOUT", settings.timeout);
  source.duration("TOWLINE_NIXL_METADATA_TIMEOUT", settings.metadata_timeout);
  settings.share = source.flag("TOWLINE_NIXL_SHARE").value_or(false);
  const std::string plugins = source.get("TOWLINE_NIXL_PLUGINS").text;
  for (const std::string_view name : split(plugins)) settings.plugins.emplace_back(name);
  read_etcd(source, settings);
  read_tcp_store(source, settings);
  read_telemetry(source, settings);
  return settings;
}

LogLevel log_level() noexcept {
  static const LogLevel level = [] {
    const std::string text = lower(variable("NIXL_LOG_LEVEL"));
    if (text == "trace") return LogLevel::kTrace;
    if (text == "debug") return LogLevel::kDebug;
    if (text == "info") return LogLevel::kInfo;
    if (text == "error") return LogLevel::kError;
    if (text == "fatal") return LogLevel::kOff;
    return LogLevel::kWarning;
  }();
  return level;
}

std::optional<std::string> in_environment(const std::string& name) {
  const char* value = std::getenv(name.c_str());  // NOLINT(concurrency-mt-unsafe): as a plugin is made
  if (value == nullptr) return std::nullopt;
  return value;
}

std::optional<std::string> find_setting(const std::string& name) {
  if (auto value = in_environment(name)) return value;
  return find_config_file().find(name);
}

std::string vendor_library(const std::string& scheme) {
  std::string name = "TOWLINE_" + scheme + "_LIBRARY";
  std::ranges::transform(name, name.begin(),
                         [](char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c; });
  return variable(name.c_str());
}

std::string plugin_directory() { return find_setting("NIXL_PLUGIN_DIR").value_or(""); }

std::string default_bucket() { return variable("AWS_DEFAULT_BUCKET"); }

}  // namespace towline::nixl
