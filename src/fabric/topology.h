// The RDMA devices and GPUs of this host, as the kernel describes them, and which of them are near each other.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/os/pci.h"

namespace towline::fabric {

using towline::pci_distance;
using towline::PciPlace;
using towline::read_gpus;

struct RdmaPort {
  std::string device;  // "mlx5_0"
  uint8_t port = 1;
  std::string driver;  // "mlx5_core"
  PciPlace place;
  bool software = false;  // soft-RoCE and the like
  bool active = false;
  std::string state;  // "ACTIVE"
  std::string rate;   // "400 Gb/sec (4X NDR)"

  // As make_rail takes it.
  std::string rail() const;
};

// root is the prefix of /sys, for tests. Whatever is missing or odd is left out, never an error.
std::vector<RdmaPort> read_rdma_ports(const std::string& root = "");

// The NUMA node of an RDMA device; -1: unknown.
int32_t numa_node_of_device(const std::string& device, const std::string& root = "");

// The rails that are nearest, a bit each, of at most 32. All, where nothing is known.
uint32_t nearest_rails(std::span<const PciPlace> rails, const PciPlace& device) noexcept;
uint32_t rails_of_node(std::span<const PciPlace> rails, int32_t numa_node) noexcept;

// Every active port of a real device; software devices are used only where they are named.
struct RailChoice {
  std::vector<std::string> rails;  // at most kMaxRails
  std::string reason;              // for people: what was chosen, or why nothing was
};
RailChoice choose_rails(const std::vector<RdmaPort>& ports);

// GPUs, RDMA ports and NUMA nodes as JSON, with the rails that are nearest to each GPU and node:
//   {"gpus": [{"address", "numa_node", "near": [RAIL..]}],
//    "ports": [{"rail", "device", "port", "address", "numa_node", "driver", "state", "rate", "software", "chosen"}],
//    "numa_nodes": [{"id", "near": [RAIL..]}], "choice": "what rails = auto takes, or why nothing"}
// Near are rails of ports that are chosen.
std::string describe_topology(const std::string& root = "");

// The NUMA node of the page at this address; -1: unknown.
int32_t numa_node_of(const void* address) noexcept;

}  // namespace towline::fabric
