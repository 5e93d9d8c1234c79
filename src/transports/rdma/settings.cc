#include "transports/rdma/settings.h"

#include <fmt/format.h>

#include <charconv>
#include <optional>

#include "base/config/config.h"
#include "fabric/domain.h"

namespace towline::rdma {
namespace {

[[noreturn]] void refuse(const std::string& key, const std::string& value, const std::string& wanted) {
  throw plugin::Failure(Status::kInvalidArgument,
                        fmt::format("{} = \"{}\": expected {}", key, value, wanted));
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t comma = std::min(text.find(',', at), text.size());
    std::string part = text.substr(at, comma - at);
    const std::size_t first = part.find_first_not_of(' ');
    if (first != std::string::npos)
      parts.push_back(part.substr(first, part.find_last_not_of(' ') + 1 - first));
    at = comma + 1;
  }
  return parts;
}

}  // namespace

Settings Settings::read(const plugin::Host& host, const Flavour& flavour) {
  Settings settings;
  const auto value = [&](const std::string& key, const char* otherwise) {
    return host.config(key.c_str(), otherwise);
  };
  const std::string rails_key = flavour.key("rails");
  const std::string rails = value(rails_key, "auto");
  settings.automatic = rails == "auto";
  if (settings.automatic) {
    DefaultRails found = flavour.default_rails(host);
    settings.rails = std::move(found.names);
    settings.why_rails = std::move(found.why);
  } else {
    settings.rails = split(rails);
    settings.why_rails = "named by " + rails_key;
  }
  if (settings.rails.empty() || settings.rails.size() > fabric::kMaxRails)
    refuse(rails_key, rails, fmt::format("auto, or 1 to {} rails with commas between", fabric::kMaxRails));
  const std::string connections_key = flavour.key("connections");
  const std::string connections = value(connections_key, "64");
  const auto [end, error] =
      std::from_chars(connections.data(), connections.data() + connections.size(), settings.connections);
  if (error != std::errc{} || end != connections.data() + connections.size() || settings.connections < 1 ||
      settings.connections > 4096)
    refuse(connections_key, connections, "a number from 1 to 4096");
  const std::string slice_key = flavour.key("slice_bytes");
  const std::string slice = value(slice_key, "0");
  const std::optional<uint64_t> bytes = parse_bytes(slice);
  if (!bytes || *bytes > (1u << 30) || (*bytes != 0 && *bytes < 512))
    refuse(slice_key, slice, "a size from 512 to 1GiB, or 0");
  settings.slice_bytes = *bytes;
  const std::string background_key = flavour.key("background_bytes");
  const std::string background = value(background_key, "256MiB");
  const std::optional<uint64_t> least = parse_bytes(background);
  if (!least) refuse(background_key, background, "a size, or 0");
  settings.background_bytes = *least;
  return settings;
}

}  // namespace towline::rdma
