// This host's processors and memory, as the kernel describes them. GPUs, NICs and PCIe are src/memory's.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace towline {

struct NumaNode {
  uint32_t id = 0;
  std::vector<uint32_t> cpus;       // online ones, ascending
  uint64_t memory_bytes = 0;        // 0 when not told
  std::vector<uint32_t> distances;  // to each node, in the order of HostTopology::nodes; empty when not told
};

struct HugePageSize {
  uint64_t bytes = 0;
  uint64_t reserved = 0;  // pages in the pool
  uint64_t free = 0;      // pages of the pool not in use
};

struct HostTopology {
  std::vector<NumaNode> nodes;           // at least one, ascending ids
  std::vector<uint32_t> online_cpus;     // ascending
  std::vector<uint32_t> allowed_cpus;    // by this thread's affinity, ascending
  std::vector<HugePageSize> huge_pages;  // sizes the kernel offers, ascending

  std::optional<uint32_t> node_of_cpu(uint32_t cpu) const noexcept;  // a node's id
  const NumaNode* find_node(uint32_t id) const noexcept;
};

// root is the prefix of /sys, for tests. A missing or odd file gives less detail, never an error: without
// NUMA information everything is node 0.
HostTopology read_host_topology(const std::string& root = "");

// The kernel's list format, "0-3,8,10-11"; nullopt when malformed or a number exceeds 1 << 20.
std::optional<std::vector<uint32_t>> parse_cpu_list(std::string_view text);

}  // namespace towline
