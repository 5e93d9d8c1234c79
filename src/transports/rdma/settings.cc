#include "transports/rdma/settings.h"

#include <fmt/format.h>

#include <charconv>
#include <optional>

#include "base/config/config.h"
#include "fabric/domain.h"
#include "fabric/topology.h"

namespace towline::rdma {
namespace {

[[noreturn]] void refuse(const char* key, const std::string& value, const std::string& wanted) {
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

Settings Settings::read(const plugin::Host& host) {
  Settings settings;
  const std::string rails = host.config("rdma.rails", "auto");
  settings.automatic = rails == "auto";
  if (settings.automatic) {
    const fabric::RailChoice choice = fabric::choose_rails(fabric::read_rdma_ports());
    if (choice.rails.empty())
      throw plugin::Failure(Status::kUnsupported, choice.reason + " (rdma.rails names rails)");
    settings.rails = choice.rails;
    settings.why_rails = choice.reason;
  } else {
    settings.rails = split(rails);
    settings.why_rails = "named by rdma.rails";
  }
  if (settings.rails.empty() || settings.rails.size() > fabric::kMaxRails)
    refuse("rdma.rails", rails, fmt::format("auto, or 1 to {} rails with commas between", fabric::kMaxRails));
  const std::string connections = host.config("rdma.connections", "64");
  const auto [end, error] =
      std::from_chars(connections.data(), connections.data() + connections.size(), settings.connections);
  if (error != std::errc{} || end != connections.data() + connections.size() || settings.connections < 1 ||
      settings.connections > 4096)
    refuse("rdma.connections", connections, "a number from 1 to 4096");
  const std::string slice = host.config("rdma.slice_bytes", "0");
  const std::optional<uint64_t> bytes = parse_bytes(slice);
  if (!bytes || *bytes > (1u << 30) || (*bytes != 0 && *bytes < 512))
    refuse("rdma.slice_bytes", slice, "a size from 512 to 1GiB, or 0");
  settings.slice_bytes = *bytes;
  return settings;
}

}  // namespace towline::rdma
