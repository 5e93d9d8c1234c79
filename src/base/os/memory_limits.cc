#include "base/os/memory_limits.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>

#include "base/os/unique_fd.h"

namespace towline {
namespace {

std::optional<uint64_t> leading_number(std::string_view text) noexcept {
  text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
  uint64_t value = 0;
  if (std::from_chars(text.data(), text.data() + text.size(), value).ec != std::errc()) return std::nullopt;
  return value;
}

// The number after `name` where that starts a line: "MemAvailable:   123 kB", "active_file 123".
std::optional<uint64_t> named_number(std::string_view text, std::string_view name) noexcept {
  for (std::size_t at = text.find(name); at != std::string_view::npos; at = text.find(name, at + 1)) {
    if (at == 0 || text[at - 1] == '\n') return leading_number(text.substr(at + name.size()));
  }
  return std::nullopt;
}

uint64_t host_bytes(const std::string& root) {
  const std::string text = read_text_file(root + "/proc/meminfo").value_or("");
  const std::optional<uint64_t> available_kib = named_number(text, "MemAvailable:");
  if (!available_kib) return UINT64_MAX;
  return (*available_kib + named_number(text, "SwapFree:").value_or(0)) * 1024;
}

// One version of cgroups: the folder and files it uses, and the name of its hierarchy in /proc/self/cgroup:
// "0::/user.slice/job", "9:memory:/docker/1a2b".
struct Cgroups {
  const char* folder;
  const char* hierarchy;
  const char* limit;
  const char* used;
  const char* active_cache;
  const char* inactive_cache;
};
constexpr Cgroups kVersions[] = {
    {"/sys/fs/cgroup", "\n0::", "/memory.max", "/memory.current", "active_file ", "inactive_file "},
    {"/sys/fs/cgroup/memory", ":memory:", "/memory.limit_in_bytes", "/memory.usage_in_bytes",
     "total_active_file ", "total_inactive_file "}};

uint64_t cgroup_bytes(const Cgroups& cgroups, const std::string& folder) {
  const std::optional<std::string> limit_text = read_text_file(folder + cgroups.limit);
  const std::optional<uint64_t> limit = leading_number(limit_text.value_or("max"));
  if (!limit) return UINT64_MAX;
  const uint64_t used = leading_number(read_text_file(folder + cgroups.used).value_or("")).value_or(0);
  const std::string stat = read_text_file(folder + "/memory.stat").value_or("");
  const uint64_t cache = named_number(stat, cgroups.active_cache).value_or(0) +
                         named_number(stat, cgroups.inactive_cache).value_or(0);
  const uint64_t held = used - std::min(used, cache);
  return *limit - std::min(*limit, held);
}

// This process's cgroup; "/" when it is not named.
std::string cgroup_path(const Cgroups& cgroups, const std::string& root) {
  const std::string text = "\n" + read_text_file(root + "/proc/self/cgroup").value_or("");
  const std::size_t at = text.find(cgroups.hierarchy);
  if (at == std::string::npos) return "/";
  const std::size_t start = text.find('/', at);
  return start == std::string::npos ? "/" : text.substr(start, text.find('\n', start) - start);
}

// The bytes that this process's cgroup and those above it leave. In a container the path may be the host's: then
// only the root is there, which is the container's own.
uint64_t cgroups_bytes(const Cgroups& cgroups, const std::string& root) {
  uint64_t bytes = UINT64_MAX;
  std::string path = cgroup_path(cgroups, root);
  while (true) {
    bytes = std::min(bytes, cgroup_bytes(cgroups, root + cgroups.folder + path));
    const std::size_t slash = path.rfind('/');
    if (path.size() <= 1 || slash == std::string::npos) return bytes;
    path.resize(std::max<std::size_t>(slash, 1));
  }
}

}  // namespace

uint64_t available_memory_bytes(const std::string& root) {
  uint64_t bytes = host_bytes(root);
  for (const Cgroups& cgroups : kVersions) bytes = std::min(bytes, cgroups_bytes(cgroups, root));
  return bytes;
}

}  // namespace towline
