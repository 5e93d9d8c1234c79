#include "base/os/topology.h"

#include <dirent.h>
#include <sched.h>

#include <algorithm>
#include <charconv>
#include <memory>

#include "base/os/unique_fd.h"

namespace towline {
namespace {

constexpr uint32_t kMostCpus = 1 << 20;

std::optional<uint64_t> parse_number(std::string_view text) noexcept {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::string_view trimmed(std::string_view text) noexcept {
  const auto space = [](char c) { return c == ' ' || c == '\n' || c == '\t'; };
  while (!text.empty() && space(text.front())) text.remove_prefix(1);
  while (!text.empty() && space(text.back())) text.remove_suffix(1);
  return text;
}

std::vector<uint32_t> read_cpu_list(const std::string& path) {
  const std::optional<std::string> text = read_text_file(path);
  if (!text) return {};
  return parse_cpu_list(trimmed(*text)).value_or(std::vector<uint32_t>{});
}

uint64_t read_number(const std::string& path) {
  const std::optional<std::string> text = read_text_file(path);
  return text ? parse_number(trimmed(*text)).value_or(0) : 0;
}

// Numbers N of the entries <prefix>N<suffix> of a directory, ascending.
std::vector<uint64_t> numbered_entries(const std::string& path, std::string_view prefix,
                                       std::string_view suffix) {
  std::vector<uint64_t> numbers;
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(opendir(path.c_str()), closedir);
  if (!directory) return numbers;
  while (const dirent* entry = readdir(directory.get())) {
    std::string_view name = entry->d_name;
    if (!name.starts_with(prefix) || !name.ends_with(suffix)) continue;
    name.remove_prefix(prefix.size());
    name.remove_suffix(std::min(name.size(), suffix.size()));
    if (const auto number = parse_number(name)) numbers.push_back(*number);
  }
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

// "Node 0 MemTotal:   65842516 kB"
uint64_t node_memory_bytes(const std::string& meminfo) {
  const std::string text = read_text_file(meminfo).value_or("");
  std::size_t at = text.find("MemTotal:");
  if (at == std::string::npos) return 0;
  at = text.find_first_not_of(' ', at + 9);
  if (at == std::string::npos) return 0;
  const std::size_t end = text.find(' ', at);
  if (end == std::string::npos) return 0;
  return parse_number(std::string_view(text).substr(at, end - at)).value_or(0) * 1024;
}

std::vector<uint32_t> read_distances(const std::string& path) {
  std::vector<uint32_t> distances;
  const std::string text = read_text_file(path).value_or("");
  std::string_view rest = trimmed(text);
  while (!rest.empty()) {
    const std::string_view word = rest.substr(0, rest.find(' '));
    const auto value = parse_number(word);
    if (!value || *value > UINT32_MAX) return {};
    distances.push_back(static_cast<uint32_t>(*value));
    rest = trimmed(rest.substr(word.size()));
  }
  return distances;
}

std::vector<uint32_t> read_allowed_cpus() {
  std::vector<uint32_t> cpus;
  // The kernel refuses a set smaller than its own: grow until it fits.
  for (int count = 1024; count <= static_cast<int>(kMostCpus); count *= 4) {
    const std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> set(CPU_ALLOC(count),
                                                               [](cpu_set_t* s) { CPU_FREE(s); });
    const std::size_t bytes = CPU_ALLOC_SIZE(count);
    CPU_ZERO_S(bytes, set.get());
    if (sched_getaffinity(0, bytes, set.get()) != 0) continue;
    for (int cpu = 0; cpu < count; ++cpu) {
      if (CPU_ISSET_S(cpu, bytes, set.get())) cpus.push_back(static_cast<uint32_t>(cpu));
    }
    break;
  }
  return cpus;
}

}  // namespace

std::optional<std::vector<uint32_t>> parse_cpu_list(std::string_view text) {
  std::vector<uint32_t> cpus;
  while (!text.empty()) {
    const std::string_view range = text.substr(0, text.find(','));
    const std::size_t dash = range.find('-');
    const auto first = parse_number(range.substr(0, dash));
    const auto last = dash == std::string_view::npos ? first : parse_number(range.substr(dash + 1));
    if (!first || !last || *first > *last || *last > kMostCpus) return std::nullopt;
    for (uint64_t cpu = *first; cpu <= *last; ++cpu) cpus.push_back(static_cast<uint32_t>(cpu));
    if (range.size() == text.size()) break;
    text.remove_prefix(range.size() + 1);
    if (text.empty()) return std::nullopt;  // ends in a comma
  }
  std::sort(cpus.begin(), cpus.end());
  cpus.erase(std::unique(cpus.begin(), cpus.end()), cpus.end());
  return cpus;
}

std::optional<uint32_t> HostTopology::node_of_cpu(uint32_t cpu) const noexcept {
  for (const NumaNode& node : nodes) {
    if (std::binary_search(node.cpus.begin(), node.cpus.end(), cpu)) return node.id;
  }
  return std::nullopt;
}

const NumaNode* HostTopology::find_node(uint32_t id) const noexcept {
  for (const NumaNode& node : nodes) {
    if (node.id == id) return &node;
  }
  return nullptr;
}

HostTopology read_host_topology(const std::string& root) {
  HostTopology topology;
  topology.allowed_cpus = read_allowed_cpus();
  topology.online_cpus = read_cpu_list(root + "/sys/devices/system/cpu/online");
  if (topology.online_cpus.empty()) topology.online_cpus = topology.allowed_cpus;

  const std::string nodes = root + "/sys/devices/system/node";
  for (const uint64_t id : numbered_entries(nodes, "node", "")) {
    const std::string path = nodes + "/node" + std::to_string(id);
    topology.nodes.push_back({.id = static_cast<uint32_t>(id),
                              .cpus = read_cpu_list(path + "/cpulist"),
                              .memory_bytes = node_memory_bytes(path + "/meminfo"),
                              .distances = read_distances(path + "/distance")});
  }
  if (topology.nodes.empty()) {
    topology.nodes.push_back({.id = 0, .cpus = topology.online_cpus, .memory_bytes = 0, .distances = {}});
  }

  const std::string pages = root + "/sys/kernel/mm/hugepages";
  for (const uint64_t kib : numbered_entries(pages, "hugepages-", "kB")) {
    const std::string path = pages + "/hugepages-" + std::to_string(kib) + "kB";
    topology.huge_pages.push_back({.bytes = kib * 1024,
                                   .reserved = read_number(path + "/nr_hugepages"),
                                   .free = read_number(path + "/free_hugepages")});
  }
  return topology;
}

}  // namespace towline
