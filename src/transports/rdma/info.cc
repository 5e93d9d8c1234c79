// What an agent's info tells of its rails.
#include <algorithm>

#include "transports/rdma/backend.h"

namespace towline::rdma {

namespace {

struct NeverMet {
  std::string_view rails;  // by the beginning of their kind
  std::string_view part;
  std::string_view what;
};

constexpr NeverMet kNeverMet[] = {
    {"verbs", "verbs", "a NIC: soft-RoCE alone has carried it"},
    {"verbs", "GPU memory by dma-buf", "a driver that exports it to a NIC, and a NIC that takes it"},
    {"ofi:efa", "efa", "an EFA device"},
    {"ofi:efa", "GPU memory by dma-buf", "a driver that exports it to a NIC, and a NIC that takes it"},
    {"ofi:verbs", "libfabric's verbs", "a NIC"},
    {"ofi:verbs", "GPU memory by dma-buf", "a driver that exports it to a NIC, and a NIC that takes it"},
};

}  // namespace

// The workers' rails of one name together.
std::string Backend::describe() const {
  std::vector<fabric::RailCounters> sums(settings_.rails.size());
  for (const auto& worker : workers_) {
    const std::vector<fabric::RailCounters> counters = worker->engine->counters();
    for (std::size_t rail = 0; rail < counters.size(); ++rail) {
      sums[rail].bytes += counters[rail].bytes;
      sums[rail].connections += counters[rail].connections;
      sums[rail].breaks += counters[rail].breaks;
      sums[rail].retried += counters[rail].retried;
      sums[rail].longest_pause_ns = std::max(sums[rail].longest_pause_ns, counters[rail].longest_pause_ns);
      sums[rail].down = sums[rail].down || counters[rail].down;
    }
  }
  std::string rails;
  for (std::size_t rail = 0; rail < sums.size(); ++rail) {
    const fabric::DomainTraits& traits = workers_.front()->engine->traits(rail);
    const fabric::RailCounters& of = sums[rail];
    rails += fmt::format(
        R"({}{{"name": "{:.80}", "numa_node": {}, "bytes_per_s": {}, "state": "{}", "connections": {}, )"
        R"("bytes": {}, "breaks": {}, "retried": {}, "longest_pause_ms": {:.1f}}})",
        rails.empty() ? "" : ", ", printable(traits.name), traits.numa_node, traits.bandwidth_bytes_per_s,
        of.down ? "down" : "up", of.connections, of.bytes, of.breaks, of.retried,
        static_cast<double>(of.longest_pause_ns) / 1e6);
  }
  const RegionsCounters regions = regions_->counters();
  return fmt::format(
      R"({{"chosen": "{:.300}", "rails": [{}], "near": [{}], "never_met": [{}], "regions": {}, )"
      R"("registrations": {{"held": {}, "under_way": {}, "made": {}}}}})",
      printable(settings_.why_rails), rails, describe_places(), describe_never_met(), regions.regions,
      regions.registrations, regions.under_way, regions.made);
}

// Which rails are nearest to which GPU and NUMA node.
std::string Backend::describe_places() const {
  std::string text;
  const auto add = [&](const std::string& what, uint32_t mask) {
    std::string numbers;
    for (std::size_t rail = 0; rail < places_.size(); ++rail)
      if ((mask >> rail & 1) != 0) numbers += fmt::format("{}{}", numbers.empty() ? "" : ", ", rail);
    text += fmt::format(R"({}{{"to": "{}", "rails": [{}]}})", text.empty() ? "" : ", ", what, numbers);
  };
  const auto known = [](const fabric::PciPlace& place) { return !place.path.empty(); };
  if (std::none_of(places_.begin(), places_.end(), known)) return text;
  for (const fabric::PciPlace& gpu : fabric::read_gpus())
    add("GPU " + gpu.address(), fabric::nearest_rails(places_, gpu));
  std::vector<int32_t> nodes;
  for (const fabric::PciPlace& place : places_)
    if (std::find(nodes.begin(), nodes.end(), place.numa_node) == nodes.end())
      nodes.push_back(place.numa_node);
  for (const int32_t node : nodes)
    if (node >= 0) add(fmt::format("NUMA node {}", node), fabric::rails_of_node(places_, node));
  return text;
}

// Of the sorts of rails that are here: each part once.
std::string Backend::describe_never_met() const {
  std::string text;
  std::vector<std::string_view> told;
  for (const NeverMet& entry : kNeverMet) {
    const auto is_here = [&](const std::string& kind) { return kind.starts_with(entry.rails); };
    if (std::none_of(kinds_.begin(), kinds_.end(), is_here) ||
        std::find(told.begin(), told.end(), entry.part) != told.end())
      continue;
    told.push_back(entry.part);
    text +=
        fmt::format(R"({}{{"part": "{}", "what": "{}"}})", text.empty() ? "" : ", ", entry.part, entry.what);
  }
  return text;
}

}  // namespace towline::rdma
