#include "settings.h"

#include <charconv>
#include <cstdlib>

#include <towline/towline.hpp>

namespace towline_tcpx {
namespace {

constexpr const char* kPort = "UCCL_TCPX_OOB_PORT";
constexpr uint64_t kFirstPort = 28900;
constexpr uint64_t kMorePorts = 16;

std::string variable(const char* name) {
  const char* const text = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): read while a session is made
  return text == nullptr ? "" : text;
}

uint64_t number(const char* name, uint64_t fallback, uint64_t low, uint64_t high) {
  const std::string value = variable(name);
  if (value.empty()) return fallback;
  uint64_t result = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), result);
  if (error != std::errc{} || end != value.data() + value.size() || result < low || result > high)
    throw towline::Error{towline::Status::kInvalidArgument,
                         std::string(name) + " = \"" + value + "\": expected a number from " +
                             std::to_string(low) + " to " + std::to_string(high)};
  return result;
}

std::string quoted(const std::string& text) {
  for (const char c : text)
    if (c == '"' || c == '\\' || static_cast<unsigned char>(c) < ' ')
      throw towline::Error{towline::Status::kInvalidArgument,
                           "\"" + text + "\" has characters that no name has"};
  return "\"" + text + "\"";
}

bool has_port(const std::string& listen) {
  const std::size_t colon = listen.rfind(':');
  if (colon == std::string::npos) return false;
  return listen.front() == '[' ? listen[colon - 1] == ']' : listen.find(':') == colon;
}

std::string list_of_plugins(const tcpx_session_options_t& options) {
  const std::string names = options.plugins != nullptr ? options.plugins
                            : options.gpus != 0        ? "tcpx,cuda"
                                                       : "tcpx";
  std::string list;
  for (std::size_t at = 0; at < names.size();) {
    const std::size_t end = std::min(names.find(',', at), names.size());
    list += (list.empty() ? "" : ", ") + quoted(names.substr(at, end - at));
    at = end + 1;
  }
  return list;
}

}  // namespace

bool names_port() { return !variable(kPort).empty(); }

Settings read_settings(const tcpx_session_options_t& options) {
  Settings settings;
  const std::string host =
      options.listen != nullptr && *options.listen != '\0' ? options.listen : "127.0.0.1";
  if (has_port(host)) {
    settings.listen.push_back(host);
  } else {
    const uint64_t first = number(kPort, kFirstPort, 1, 65535);
    for (uint64_t port = first; port <= std::min<uint64_t>(first + kMorePorts, 65535); ++port)
      settings.listen.push_back(host + ":" + std::to_string(port));
  }
  settings.backends = options.gpus != 0 ? "tcpx,cuda" : "tcpx";
  settings.config = "plugins = [" + list_of_plugins(options) + "]\n";
  // Quoted, each is one key of the first table: tables of the same names may follow.
  const auto add = [&](const char* key, const char* value, const std::string& otherwise = "") {
    const std::string chosen = value != nullptr && *value != '\0' ? value : otherwise;
    if (!chosen.empty())
      settings.config += "\"tuning.tcpx." + std::string(key) + "\" = " + quoted(chosen) + "\n";
  };
  add("source", options.source);
  add("interface", options.interface, variable("NCCL_GPUDIRECTTCPX_SOCKET_IFNAME"));
  add("queues", options.queues);
  add("daemon_dir", nullptr, variable("NCCL_GPUDIRECTTCPX_UNIX_CLIENT_PREFIX"));
  const uint64_t chunk = number("UCCL_TCPX_CHUNK_BYTES", 0, 4096, 16u << 20);
  if (chunk != 0) add("frame_bytes", std::to_string(chunk).c_str());
  return settings;
}

}  // namespace towline_tcpx
