#include "transports/tcp/options.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "base/config/config.h"
#include "base/config/settings_table.h"
#include "base/error.h"
#include "transports/tcp/wire.h"

namespace towline::tcp {
namespace {

// "tcp.listen", or the same setting of a backend with another name.
struct Key {
  const std::string& backend;
  std::string operator()(const char* setting) const { return setting_name(backend + "." + setting); }
};

[[noreturn]] void refuse(const std::string& key, const std::string& value, const std::string& wanted) {
  throw plugin::Failure(Status::kInvalidArgument,
                        fmt::format("{} = \"{}\": expected {}", key, value, wanted));
}

bool is_set(const plugin::Host& host, const std::string& key) {
  return !host.config(key.c_str(), "").empty();
}

uint64_t read_bytes(const plugin::Host& host, const std::string& key, const char* fallback, uint64_t low,
                    uint64_t high) {
  const std::string value = host.config(key.c_str(), fallback);
  const std::optional<uint64_t> bytes = parse_bytes(value);
  if (!bytes || *bytes < low || *bytes > high)
    refuse(key, value, fmt::format("a size from {} to {} bytes", low, high));
  return *bytes;
}

uint64_t read_duration(const plugin::Host& host, const std::string& key, const char* fallback) {
  const std::string value = host.config(key.c_str(), fallback);
  const std::optional<uint64_t> ns = parse_duration_ns(value);
  if (!ns || *ns == 0) refuse(key, value, "a time such as 5s");
  return *ns;
}

uint32_t read_number(const plugin::Host& host, const std::string& key, uint32_t low, uint32_t high) {
  const std::string value = host.config(key.c_str(), "");
  uint32_t number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  const bool whole = error == std::errc{} && end == value.data() + value.size();
  if (!whole || number < low || number > high)
    refuse(key, value, fmt::format("a number from {} to {}", low, high));
  return number;
}

bool read_bool(const plugin::Host& host, const std::string& key, bool fallback) {
  const std::string value = host.config(key.c_str(), fallback ? "true" : "false");
  if (value == "true" || value == "yes" || value == "on" || value == "1") return true;
  if (value == "false" || value == "no" || value == "off" || value == "0") return false;
  refuse(key, value, "true or false");
}

Zerocopy read_zerocopy(const plugin::Host& host, const std::string& key) {
  const std::string value = host.config(key.c_str(), "auto");
  if (value == "auto") return Zerocopy::kAuto;
  if (value == "on") return Zerocopy::kOn;
  if (value == "off") return Zerocopy::kOff;
  refuse(key, value, "auto, on or off");
}

// `read` throws Error without the key.
template <class Read>
void read_with(const std::string& key, const std::string& value, Read read) {
  try {
    read(value);
  } catch (const Error& error) {
    throw plugin::Failure(error.code(), fmt::format("{} = \"{}\": {}", key, value, error.message()));
  }
}

// The setting's own endpoints, or the hosts that the agent listens at, on other ports: so one setting says who reaches the
// agent. A Unix socket is reached from this host alone, and so is loopback.
std::vector<Endpoint> read_listen(const plugin::Host& host, const Key& key) {
  std::vector<Endpoint> endpoints;
  if (const std::string own = host.config(key("listen").c_str(), ""); !own.empty()) {
    if (own == "none") return endpoints;
    read_with(key("listen"), own, [&](const std::string& text) { endpoints = parse_endpoints(text, 0); });
    return endpoints;
  }
  const std::string listen = host.config("listen", "127.0.0.1:0");
  if (listen == "none") return endpoints;
  std::vector<Endpoint> given;
  read_with("listen", listen, [&](const std::string& text) { given = parse_endpoints(text, 0); });
  for (Endpoint& endpoint : given) {
    endpoint.port = 0;
    if (endpoint.is_unix) endpoint = {false, "127.0.0.1", 0};
    if (std::find(endpoints.begin(), endpoints.end(), endpoint) == endpoints.end())
      endpoints.push_back(std::move(endpoint));
  }
  return endpoints;
}

Options read_all(const plugin::Host& host, const std::string& name) {
  const Key key{name};
  Options options;
  options.listen = read_listen(host, key);
  options.any_user = read_bool(host, "listen.any_user", false);
  options.limits = Sources::default_limits();
  if (is_set(host, key("most_accepted")))
    options.limits.sockets = read_number(host, key("most_accepted"), 1, 1u << 20);
  options.limits.sockets_per_source = std::min(options.limits.sockets_per_source, options.limits.sockets);
  if (is_set(host, key("most_accepted_per_source")))
    options.limits.sockets_per_source = read_number(host, key("most_accepted_per_source"), 1, 1u << 20);
  read_with(key("port_range"), host.config(key("port_range").c_str(), ""),
            [&](const std::string& text) { options.ports = parse_port_range(text); });
  options.advertise = host.config(key("advertise").c_str(), "");
  options.unix_dir = host.config(key("unix_dir").c_str(), "");
  while (options.unix_dir.size() > 1 && options.unix_dir.ends_with('/')) options.unix_dir.pop_back();
  if (is_set(host, key("sockets"))) options.sockets = read_number(host, key("sockets"), 1, kMaxLanes);
  options.bulk_bytes = read_bytes(host, key("bulk_bytes"), "1MiB", 0, UINT64_MAX);
  if (is_set(host, key("frame_bytes")))
    options.frame_bytes = read_bytes(host, key("frame_bytes"), "", 4096, 16u << 20);
  options.socket_buffer = read_bytes(host, key("socket_buffer"), "0", 0, 1u << 30);
  options.congestion = host.config(key("congestion").c_str(), "");
  // Payload of the others goes on flows of their own.
  options.zerocopy = name == "tcp" ? read_zerocopy(host, key("zerocopy")) : Zerocopy::kOff;
  options.handshake_timeout_ns = read_duration(host, key("handshake_timeout"), "5s");
  options.user_timeout_ns = read_duration(host, key("user_timeout"), "20s");
  options.checksum = read_bool(host, key("checksum"), false);
  // The others' payload goes past it: they refuse keys.
  if (name == "tcp")
    options.keys = secure::Keys::configured([&](const char* one) { return host.config(one, ""); });
  options.faults = framing::parse_fault_options(host.config("faults", ""));
  return options;
}

}  // namespace

// Over loopback no further socket finds a further path: what one thread sends another one receives, in turn.
// One goes on where four would each begin anew: between two frames on different sockets the receiver waits
// until the first 64 KiB of the next are copied in, and asks for each header by a call of its own. Larger
// frames have fewer such beginnings; 512 segments of a page fill them.
uint32_t Options::sockets_to(const SocketAddress& peer) const noexcept {
  if (sockets != 0) return sockets;
  return peer.is_loopback() ? 1 : 4;
}

uint32_t Options::frame_bytes_to(const SocketAddress& peer) const noexcept {
  if (frame_bytes != 0) return static_cast<uint32_t>(frame_bytes);
  return peer.is_loopback() ? 2u << 20 : 1u << 20;
}

Options Options::read(const plugin::Host& host, const std::string& name) {
  try {
    return read_all(host, name);
  } catch (const Error& error) {
    throw plugin::Failure(error.code(), error.message());
  }
}

}  // namespace towline::tcp
