#include "base/os/placement.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <map>

#include "base/error.h"
#include "base/os/pci.h"
#include "base/os/topology.h"

namespace towline {
namespace {

constexpr const char* kSetting = "tuning.workers.place";

[[noreturn]] void refuse(const std::string& setting, const std::string& why) {
  fail(Status::kInvalidArgument, "{} = \"{}\": {}", kSetting, setting, why);
}

std::vector<uint32_t> allowed(const HostTopology& host, const std::vector<uint32_t>& cpus) {
  std::vector<uint32_t> both;
  std::set_intersection(cpus.begin(), cpus.end(), host.allowed_cpus.begin(), host.allowed_cpus.end(),
                        std::back_inserter(both));
  return both;
}

std::string listed(const std::vector<uint32_t>& numbers) {
  return fmt::format("{}", fmt::join(numbers, ","));
}

WorkerPlace on_node(const HostTopology& host, uint32_t id, const std::string& reason) {
  const NumaNode* const node = host.find_node(id);
  std::vector<uint32_t> cpus = allowed(host, node->cpus);
  if (cpus.empty())
    return {{},
            id,
            fmt::format("memory of node {} ({}); this process may not run on its processors", id, reason)};
  return {std::move(cpus), id, fmt::format("node {} ({})", id, reason)};
}

// How many devices each node has.
std::map<uint32_t, uint32_t> devices_by_node(const HostTopology& host, const std::string& root) {
  std::map<uint32_t, uint32_t> count;
  std::vector<std::string> seen;
  const auto add = [&](const PciPlace& place) {
    if (place.numa_node < 0 || host.find_node(static_cast<uint32_t>(place.numa_node)) == nullptr) return;
    // An RDMA device is a network card too.
    if (std::find(seen.begin(), seen.end(), place.address()) != seen.end()) return;
    seen.push_back(place.address());
    ++count[static_cast<uint32_t>(place.numa_node)];
  };
  for (const PciPlace& gpu : read_gpus(root)) add(gpu);
  for (const NetworkInterface& nic : read_network_interfaces(root))
    if (nic.up) add(nic.place);
  std::error_code error;
  for (std::filesystem::directory_iterator at{root + "/sys/class/infiniband", error}, end;
       !error && at != end; at.increment(error))
    add(read_pci_place(at->path() / "device"));
  return count;
}

std::vector<WorkerPlace> by_devices(const HostTopology& host, const std::string& root) {
  if (host.nodes.size() < 2) return {{{}, {}, "any processor: this host has one NUMA node"}};
  std::vector<std::pair<uint32_t, uint32_t>> nodes;
  for (const auto& [node, count] : devices_by_node(host, root)) nodes.emplace_back(node, count);
  if (nodes.empty()) return {{{}, {}, "any processor: no device tells its NUMA node"}};
  std::stable_sort(nodes.begin(), nodes.end(),
                   [](const auto& one, const auto& other) { return one.second > other.second; });
  std::vector<WorkerPlace> places;
  for (const auto& [node, count] : nodes)
    places.push_back(on_node(host, node, count == 1 ? "1 device" : fmt::format("{} devices", count)));
  return places;
}

std::vector<WorkerPlace> by_node(const HostTopology& host, const std::string& setting) {
  const auto wanted = setting.substr(5);
  std::vector<WorkerPlace> places;
  for (std::size_t at = 0; at <= wanted.size();) {
    const std::size_t comma = std::min(wanted.find(',', at), wanted.size());
    const auto number = parse_cpu_list(wanted.substr(at, comma - at));
    if (!number || number->size() != 1) refuse(setting, "expected numbers of NUMA nodes after node:");
    if (host.find_node(number->front()) == nullptr) {
      std::vector<uint32_t> there;
      for (const NumaNode& node : host.nodes) there.push_back(node.id);
      refuse(setting, fmt::format("there is no node {}, only {}", number->front(), listed(there)));
    }
    places.push_back(on_node(host, number->front(), kSetting));
    at = comma + 1;
  }
  return places;
}

std::vector<WorkerPlace> by_cpus(const HostTopology& host, const std::string& setting) {
  const auto wanted = setting.substr(5);
  std::vector<WorkerPlace> places;
  for (std::size_t at = 0; at <= wanted.size();) {
    const std::size_t slash = std::min(wanted.find('/', at), wanted.size());
    auto cpus = parse_cpu_list(wanted.substr(at, slash - at));
    if (!cpus || cpus->empty()) refuse(setting, "expected lists such as 0-3/8,9 after cpus:");
    std::sort(cpus->begin(), cpus->end());
    if (allowed(host, *cpus) != *cpus)
      refuse(setting, fmt::format("this process may run on {} only", listed(host.allowed_cpus)));
    std::optional<uint32_t> node = host.node_of_cpu(cpus->front());
    for (const uint32_t cpu : *cpus)
      if (host.node_of_cpu(cpu) != node) node.reset();
    places.push_back({std::move(*cpus), node, kSetting});
    at = slash + 1;
  }
  return places;
}

}  // namespace

std::vector<WorkerPlace> place_workers(const std::string& setting, uint32_t workers,
                                       const std::string& root) {
  std::vector<WorkerPlace> choice = {{{}, {}, "any processor"}};
  if (setting != "any") {
    const HostTopology host = read_host_topology(root);
    if (setting == "auto")
      choice = by_devices(host, root);
    else if (setting.starts_with("node:"))
      choice = by_node(host, setting);
    else if (setting.starts_with("cpus:"))
      choice = by_cpus(host, setting);
    else
      refuse(setting, "expected any, auto, node:LIST or cpus:LIST");
  }
  std::vector<WorkerPlace> places;
  for (uint32_t i = 0; i < workers; ++i) places.push_back(choice[i % choice.size()]);
  return places;
}

int run_on(std::span<const uint32_t> cpus, pthread_t thread) noexcept {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const uint32_t cpu : cpus) {
    if (cpu >= CPU_SETSIZE) return EINVAL;
    CPU_SET(cpu, &set);
  }
  return ::pthread_setaffinity_np(thread, sizeof set, &set);
}

}  // namespace towline
