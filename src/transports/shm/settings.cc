#include "transports/shm/settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <optional>
#include <string_view>

#include "base/config/config.h"
#include "transports/shm/ring_memory.h"

namespace towline::shm {

namespace {

[[noreturn]] void refuse(const char* key, const std::string& value, const std::string& wanted) {
  throw plugin::Failure(Status::kInvalidArgument,
                        fmt::format("{} = \"{}\": expected {}", key, value, wanted));
}

uint64_t read_bytes(const plugin::Host& host, const char* key, const char* fallback) {
  const std::string value = host.config(key, fallback);
  const std::optional<uint64_t> bytes = parse_bytes(value);
  if (!bytes) refuse(key, value, "a size such as 256KiB");
  return *bytes;
}

bool read_bool(const plugin::Host& host, const char* key, bool fallback) {
  const std::string value = host.config(key, fallback ? "true" : "false");
  if (value == "true" || value == "yes" || value == "on" || value == "1") return true;
  if (value == "false" || value == "no" || value == "off" || value == "0") return false;
  refuse(key, value, "true or false");
}

std::vector<Path> read_paths(const plugin::Host& host) {
  constexpr const char* kKey = "tuning.shm.paths";
  const std::string value = host.config(kKey, "mapped,process_vm,ring");
  std::vector<Path> paths;
  std::string_view rest = value;
  while (!rest.empty()) {
    const size_t comma = std::min(rest.find(','), rest.size());
    std::string_view word = rest.substr(0, comma);
    rest.remove_prefix(std::min(comma + 1, rest.size()));
    while (word.starts_with(' ')) word.remove_prefix(1);
    while (word.ends_with(' ')) word.remove_suffix(1);
    Path path = Path::kRing;
    if (word == "mapped")
      path = Path::kMapped;
    else if (word == "process_vm")
      path = Path::kProcessVm;
    else if (word != "ring")
      refuse(kKey, value, "some of mapped, process_vm and ring, separated by commas");
    if (std::find(paths.begin(), paths.end(), path) == paths.end()) paths.push_back(path);
  }
  if (paths.empty()) refuse(kKey, value, "at least one of mapped, process_vm and ring");
  return paths;
}

}  // namespace

Settings Settings::read(const plugin::Host& host) {
  Settings settings;
  settings.paths = read_paths(host);
  settings.inline_bytes = read_bytes(host, "tuning.shm.inline_bytes", "1MiB");
  settings.process_vm_inline_bytes = read_bytes(host, "tuning.shm.process_vm_inline_bytes", "256KiB");
  const uint64_t ring_bytes = read_bytes(host, "tuning.shm.ring_bytes", "1MiB");
  if (!std::has_single_bit(ring_bytes) || ring_bytes < kMinRingBytes || ring_bytes > kMaxRingBytes)
    refuse("tuning.shm.ring_bytes", fmt::format("{}", ring_bytes),
           fmt::format("a power of two from {} to {}", kMinRingBytes, kMaxRingBytes));
  settings.ring_bytes = static_cast<uint32_t>(ring_bytes);
  settings.socket_dir = host.config("shm.socket_dir", "");
  while (settings.socket_dir.size() > 1 && settings.socket_dir.ends_with('/')) settings.socket_dir.pop_back();
  settings.any_user = read_bool(host, "shm.any_user", false);
  settings.map_unsealed = read_bool(host, "tuning.shm.map_unsealed", false);
  settings.allow_ptracer = read_bool(host, "tuning.shm.ptracer", true);
  return settings;
}

}  // namespace towline::shm
