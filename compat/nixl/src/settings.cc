#include "settings.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <span>
#include <stdexcept>
#include <vector>

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

[[noreturn]] void refuse(const char* name, const std::string& value, const char* expected) {
  throw std::runtime_error(
      fmt::format("the environment's {} is '{}', and should be {}", name, value, expected));
}

std::optional<bool> flag(const char* name) {
  const std::string value = lower(variable(name));
  if (value.empty()) return std::nullopt;
  for (const char* yes : {"1", "y", "yes", "on", "true", "enable"}) {
    if (value == yes) return true;
  }
  for (const char* no : {"0", "n", "no", "off", "false", "disable"}) {
    if (value == no) return false;
  }
  refuse(name, value, "yes or no");
}

void duration(const char* name, std::chrono::nanoseconds& into) {
  const std::string value = variable(name);
  if (value.empty()) return;
  const auto parsed = parse_duration(value);
  if (!parsed) refuse(name, value, "a time such as 30s or 500ms");
  into = *parsed;
}

// Towline's transports by the names UCX has for their like.
struct Transport {
  const char* name;
  std::array<std::string_view, 8> theirs;
};
constexpr Transport kTransports[] = {
    {"memory", {"self", "loopback"}},
    {"shm", {"shm", "sm", "mm", "posix", "sysv", "cma", "knem", "xpmem"}},
    {"tcp", {"tcp"}},
};

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
  if (names.empty() || std::ranges::find(names, "all") != names.end()) return {};
  std::string result;
  bool limits = false;
  bool reaches_others = false;
  for (const Transport& transport : kTransports) {
    const bool listed = named(transport, names);
    const bool self = std::string_view{transport.name} == "memory";
    // Transfers within an agent are never forbidden.
    const bool allowed = listed != all_but || self;
    limits = limits || !allowed;
    if (!allowed) continue;
    reaches_others = reaches_others || !self;
    result = result.empty() ? transport.name : self ? result : result + "," + transport.name;
  }
  if (!limits || !reaches_others) return {};
  // The memory transport would also be taken between two agents of a process, ahead of what was asked for.
  if (result.starts_with("memory,")) result = result.substr(7) + ",memory";
  return result;
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
  Settings settings;
  settings.backends = variable("TOWLINE_NIXL_BACKENDS");
  if (settings.backends.empty()) {
    const std::string tls = variable("UCX_TLS");
    settings.backends = transports_of_ucx_tls(tls);
    // It says nothing of files.
    if (!settings.backends.empty()) settings.backends += ",posix";
    if (settings.backends.empty() && !tls.empty() && tls != "all") {
      log(LogLevel::kInfo, "UCX_TLS=" + tls + " names no transport that is here, and limits nothing");
    }
  }
  duration("TOWLINE_NIXL_TIMEOUT", settings.timeout);
  duration("TOWLINE_NIXL_METADATA_TIMEOUT", settings.metadata_timeout);
  settings.share = flag("TOWLINE_NIXL_SHARE").value_or(false);
  settings.telemetry = flag("NIXL_TELEMETRY_ENABLE");
  settings.etcd_endpoints = variable("TOWLINE_ETCD_ENDPOINTS") + variable("NIXL_ETCD_ENDPOINTS");
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

}  // namespace towline::nixl
