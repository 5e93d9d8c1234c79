#include "metadata/etcd/options.h"

#include <algorithm>

#include "base/clock.h"
#include "base/config/config.h"
#include "base/error.h"
#include "base/os/unique_fd.h"
#include "metadata/etcd/codec.h"

namespace towline::etcd {
namespace {

constexpr std::string_view kDefaultPort = "2379";
constexpr std::string_view kDefaultNamespace = "/nixl/agents";
constexpr std::size_t kMostEndpoints = 64;
constexpr std::size_t kMostPasswordBytes = 4096;

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\n')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\n' || text.back() == '\r')) {
    text.remove_suffix(1);
  }
  return text;
}

bool is_host(std::string_view host) {
  return !host.empty() && std::all_of(host.begin(), host.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '-' || c == '_';
  });
}

bool is_v6(std::string_view host) {
  return host.size() > 2 && host.front() == '[' && host.back() == ']' &&
         std::all_of(host.begin() + 1, host.end() - 1,
                     [](char c) { return isxdigit(static_cast<unsigned char>(c)) || c == ':' || c == '.'; });
}

bool is_port(std::string_view port) {
  return !port.empty() && port.size() <= 5 &&
         std::all_of(port.begin(), port.end(), [](char c) { return c >= '0' && c <= '9'; }) &&
         std::stoul(std::string(port)) >= 1 && std::stoul(std::string(port)) <= 65535;
}

// "http://host:port" of what people write.
std::string endpoint(std::string_view text, bool tls, std::string_view source) {
  std::string_view rest = text;
  if (rest.starts_with("https://")) {
    tls = true;
    rest.remove_prefix(8);
  } else if (rest.starts_with("http://")) {
    rest.remove_prefix(7);
  }
  if (rest.ends_with('/')) rest.remove_suffix(1);
  if (rest.find('@') != std::string_view::npos) {
    fail(Status::kInvalidArgument,
         "{}: user and password do not belong in an address; set etcd.user and etcd.password_file", source);
  }
  const std::size_t bracket = rest.rfind(']');
  const std::size_t colon = rest.rfind(':');
  const bool has_port =
      colon != std::string_view::npos && (bracket == std::string_view::npos || colon > bracket);
  const std::string_view host = has_port ? rest.substr(0, colon) : rest;
  const std::string_view port = has_port ? rest.substr(colon + 1) : kDefaultPort;
  if ((!is_host(host) && !is_v6(host)) || !is_port(port)) {
    fail(Status::kInvalidArgument, "{}: '{}' is not host[:port] or [v6][:port]", source, shown(text));
  }
  return fmt::format("{}://{}:{}", tls ? "https" : "http", host, port);
}

std::vector<std::string> endpoints(std::string_view list, bool tls, std::string_view source) {
  std::vector<std::string> result;
  while (!list.empty()) {
    const std::size_t comma = list.find(',');
    const std::string_view item = trimmed(list.substr(0, comma));
    if (!item.empty()) result.push_back(endpoint(item, tls, source));
    list.remove_prefix(comma == std::string_view::npos ? list.size() : comma + 1);
  }
  if (result.empty() || result.size() > kMostEndpoints) {
    fail(Status::kInvalidArgument, "{} names {} servers; 1 to {} are taken", source, result.size(),
         kMostEndpoints);
  }
  return result;
}

// With one slash in front and none behind.
std::string name_space(std::string_view text, std::string_view source) {
  while (text.ends_with('/')) text.remove_suffix(1);
  while (text.starts_with('/')) text.remove_prefix(1);
  if (text.empty() || text.size() > 512 || text.find('\0') != std::string_view::npos) {
    fail(Status::kInvalidArgument, "{}: a namespace has 1 to 512 bytes beside its slashes, '{}' has {}",
         source, shown(text), text.size());
  }
  return "/" + std::string(text);
}

std::string text_setting(const Settings& settings, const char* key) {
  return settings.config(key).value_or("");
}

uint64_t duration_setting(const Settings& settings, const char* key, uint64_t otherwise_ns) {
  const auto text = settings.config(key);
  if (!text) return otherwise_ns;
  const auto value = parse_duration_ns(*text);
  if (!value || *value < kMillisecondNs) {
    fail(Status::kInvalidArgument, "{} = \"{}\" is no duration of at least 1ms, such as 5s", key,
         shown(*text));
  }
  return *value;
}

std::string password(const Settings& settings) {
  const auto direct = settings.config("etcd.password");
  const std::string file = text_setting(settings, "etcd.password_file");
  if (file.empty()) return direct.value_or("");
  if (direct) fail(Status::kInvalidArgument, "etcd.password and etcd.password_file are both set; keep one");
  const auto content = read_text_file(file, kMostPasswordBytes);
  if (!content) fail(Status::kNotFound, "etcd.password_file: \"{}\" can't be read", file);
  return std::string(trimmed(*content));
}

void find_servers(const Settings& settings, std::string_view authority, bool tls, Options& options) {
  if (!authority.empty()) {
    options.endpoints = endpoints(authority, tls, "the directory's address");
  } else if (const auto ours = settings.config("etcd.endpoints")) {
    options.endpoints = endpoints(*ours, tls, "etcd.endpoints");
  } else if (const auto theirs = settings.environment("NIXL_ETCD_ENDPOINTS")) {
    options.endpoints = endpoints(*theirs, tls, "environment NIXL_ETCD_ENDPOINTS");
  } else {
    fail(Status::kNotFound,
         "the address names no etcd server, nor does a setting: say etcd://host:port, or set etcd.endpoints "
         "(TOWLINE_ETCD_ENDPOINTS)");
  }
}

void find_namespace(const Settings& settings, std::string_view path, Options& options) {
  if (!path.empty() && path != "/") {
    options.name_space = name_space(path, "the directory's address");
  } else if (const auto ours = settings.config("etcd.namespace")) {
    options.name_space = name_space(*ours, "etcd.namespace");
  } else if (const auto theirs = settings.environment("NIXL_ETCD_NAMESPACE")) {
    options.name_space = name_space(*theirs, "environment NIXL_ETCD_NAMESPACE");
  } else {
    options.name_space = kDefaultNamespace;
  }
}

}  // namespace

Options read_options(const Settings& settings, std::string_view variant, std::string_view authority,
                     std::string_view path) {
  if (!variant.empty() && variant != "tls") {
    fail(Status::kInvalidArgument, "etcd+{}:// is not known: etcd:// or etcd+tls://", shown(variant));
  }
  Options options;
  find_servers(settings, authority, variant == "tls", options);
  find_namespace(settings, path, options);
  options.user = text_setting(settings, "etcd.user");
  options.password = password(settings);
  if (options.user.empty() && !options.password.empty()) {
    fail(Status::kInvalidArgument, "there is a password for etcd, and no etcd.user");
  }
  options.ca_file = text_setting(settings, "etcd.ca_file");
  options.cert_file = text_setting(settings, "etcd.cert_file");
  options.key_file = text_setting(settings, "etcd.key_file");
  if (options.cert_file.empty() != options.key_file.empty()) {
    fail(Status::kInvalidArgument, "etcd.cert_file and etcd.key_file belong together; one is missing");
  }
  const uint64_t lease_ns = duration_setting(settings, "tuning.etcd.lease", options.lease_s * kSecondNs);
  options.lease_s = std::max<uint64_t>((lease_ns + kSecondNs - 1) / kSecondNs, 1);
  options.connect_timeout_ns =
      duration_setting(settings, "tuning.etcd.connect_timeout", options.connect_timeout_ns);
  options.attempt_timeout_ns =
      duration_setting(settings, "tuning.etcd.attempt_timeout", options.attempt_timeout_ns);
  if (const auto text = settings.config("tuning.etcd.max_answer")) {
    const auto bytes = parse_bytes(*text);
    if (!bytes || *bytes < 4096) {
      fail(Status::kInvalidArgument, "tuning.etcd.max_answer = \"{}\" is no size of at least 4KiB",
           shown(*text));
    }
    options.max_answer_bytes = *bytes;
  }
  return options;
}

}  // namespace towline::etcd
