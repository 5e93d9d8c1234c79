#include "settings.h"

#include <charconv>
#include <cstdlib>

#include <towline/towline.hpp>

namespace towline_tcpx {
namespace {

constexpr uint64_t kFirstPort = 28900;
constexpr uint64_t kMorePorts = 16;

uint64_t number(const char* name, uint64_t fallback, uint64_t low, uint64_t high) {
  const char* const text = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): read while a session is made
  if (text == nullptr || *text == '\0') return fallback;
  const std::string value = text;
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

Settings read_settings(const tcpx_session_options_t& options) {
  Settings settings;
  const std::string host =
      options.listen != nullptr && *options.listen != '\0' ? options.listen : "127.0.0.1";
  if (has_port(host)) {
    settings.listen.push_back(host);
  } else {
    const uint64_t first = number("UCCL_TCPX_OOB_PORT", kFirstPort, 1, 65535);
    for (uint64_t port = first; port <= std::min<uint64_t>(first + kMorePorts, 65535); ++port)
      settings.listen.push_back(host + ":" + std::to_string(port));
  }
  settings.backends = options.gpus != 0 ? "tcpx,cuda" : "tcpx";
  settings.config = "plugins = [" + list_of_plugins(options) + "]\n[tuning.tcpx]\n";
  const auto add = [&](const char* key, const char* value) {
    if (value != nullptr && *value != '\0')
      settings.config += std::string(key) + " = " + quoted(value) + "\n";
  };
  add("source", options.source);
  add("interface", options.interface);
  add("queues", options.queues);
  const uint64_t chunk = number("UCCL_TCPX_CHUNK_BYTES", 0, 4096, 16u << 20);
  if (chunk != 0) add("frame_bytes", std::to_string(chunk).c_str());
  return settings;
}

}  // namespace towline_tcpx
