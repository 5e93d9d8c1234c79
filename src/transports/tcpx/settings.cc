#include "transports/tcpx/settings.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>

#include <fmt/format.h>

#include "base/config/config.h"
#include "transports/tcpx/ladder.h"

namespace towline::tcpx {
namespace {

[[noreturn]] void refuse(const char* key, const std::string& value, const std::string& wanted) {
  throw plugin::Failure(Status::kInvalidArgument,
                        fmt::format("{} = \"{}\": expected {}", key, value, wanted));
}

uint64_t read_bytes(const plugin::Host& host, const char* key, const char* fallback, uint64_t low,
                    uint64_t high) {
  const std::string value = host.config(key, fallback);
  const std::optional<uint64_t> bytes = parse_bytes(value);
  if (!bytes || *bytes < low || *bytes > high)
    refuse(key, value, fmt::format("a size from {} to {} bytes", low, high));
  return *bytes;
}

uint64_t read_number(const plugin::Host& host, const char* key, const char* fallback) {
  const std::string value = host.config(key, fallback);
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error != std::errc{} || end != value.data() + value.size()) refuse(key, value, "a number");
  return number;
}

bool read_bool(const plugin::Host& host, const char* key, bool fallback) {
  const std::string value = host.config(key, fallback ? "true" : "false");
  if (value == "true" || value == "yes" || value == "on" || value == "1") return true;
  if (value == "false" || value == "no" || value == "off" || value == "0") return false;
  refuse(key, value, "true or false");
}

std::vector<std::string> split(std::string_view text) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    const std::size_t comma = std::min(text.find(','), text.size());
    std::string_view part = text.substr(0, comma);
    while (part.starts_with(' ')) part.remove_prefix(1);
    while (part.ends_with(' ')) part.remove_suffix(1);
    if (!part.empty()) parts.emplace_back(part);
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return parts;
}

std::vector<uint32_t> read_queues(const plugin::Host& host) {
  const std::string value = host.config("tuning.tcpx.queues", "");
  std::vector<uint32_t> queues;
  for (const std::string& part : split(value)) {
    uint32_t queue = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), queue);
    if (error != std::errc{} || end != part.data() + part.size() || queue > 65535)
      refuse("tuning.tcpx.queues", value, "numbers of receive queues, such as 14,15");
    queues.push_back(queue);
  }
  if (queues.size() > 64) refuse("tuning.tcpx.queues", value, "at most 64 queues");
  return queues;
}

PoolPlace read_pool(const plugin::Host& host) {
  const std::string value = host.config("tuning.tcpx.pool", "auto");
  if (value == "auto") return PoolPlace::kAuto;
  if (value == "gpu") return PoolPlace::kGpu;
  if (value == "host") return PoolPlace::kHost;
  refuse("tuning.tcpx.pool", value, "auto, gpu or host");
}

SendWay read_send(const plugin::Host& host) {
  const std::string value = host.config("tuning.tcpx.send", "auto");
  if (value == "auto") return SendWay::kAuto;
  if (value == "gather") return SendWay::kGather;
  if (value == "emulated") return SendWay::kEmulated;
  refuse("tuning.tcpx.send", value, "auto, gather or emulated");
}

std::string read_gpu(const plugin::Host& host) {
  const std::string value = host.config("tuning.tcpx.gpu", "");
  std::string gpu = pci_address(value);
  if (gpu.empty() && !value.empty()) refuse("tuning.tcpx.gpu", value, "a PCI address such as 0000:04:00.0");
  return gpu;
}

}  // namespace

const std::vector<std::string>& default_sources() {
  // Not "mapped": no GPU reaches its pages, so each byte is copied as with "copy", and mapped before.
  static const std::vector<std::string> sources = {"devmem", "zcrx", "devmem-legacy", "copy"};
  return sources;
}

Settings Settings::read(const plugin::Host& host) {
  Settings settings;
  const std::string sources = host.config("tuning.tcpx.source", "auto");
  settings.sources = sources == "auto" ? default_sources() : split(sources);
  for (const std::string& name : settings.sources)
    if (!is_source(name)) refuse("tuning.tcpx.source", sources, "auto, or names of " + source_names());
  if (settings.sources.empty()) refuse("tuning.tcpx.source", sources, "auto, or names of " + source_names());
  settings.least_bytes =
      static_cast<uint32_t>(read_bytes(host, "tuning.tcpx.least_bytes", "16KiB", 1, 1u << 30));
  settings.pool_bytes = read_bytes(host, "tuning.tcpx.pool_bytes", "16MiB", 16u << 10, uint64_t{4} << 30);
  settings.pool = read_pool(host);
  settings.seed = read_number(host, "tuning.tcpx.seed", "1");
  settings.odd = read_bool(host, "tuning.tcpx.odd", true);
  settings.send = read_send(host);
  settings.keep_fragments = read_bool(host, "tuning.tcpx.keep_fragments", true);
  settings.gpu = read_gpu(host);
  settings.nic = choose_nic(split(host.config("tuning.tcpx.interface", "")), settings.gpu);
  settings.queues = read_queues(host);
  settings.daemon_folder = host.config("tuning.tcpx.daemon_dir", "/run/tcpx");
  settings.daemon_gpu = host.config("tuning.tcpx.daemon_gpu", settings.gpu.c_str());
  settings.state_folder = host.config("tuning.tcpx.state_dir", "/run/towline/tcpx");
  return settings;
}

}  // namespace towline::tcpx
