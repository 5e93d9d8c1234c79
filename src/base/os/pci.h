// Where GPUs and network interfaces sit on PCI, as the kernel describes it, and how far they are from one another.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace towline {

// Where a device sits: the bridges above it, from the root, then itself ("0000:17:00.0").
struct PciPlace {
  std::vector<std::string> path;  // empty: not on PCI
  int32_t numa_node = -1;         // -1: unknown

  std::string address() const { return path.empty() ? std::string{} : path.back(); }
};

// `device` is a device's folder in sysfs, or a link to it. Whatever is missing or odd is left out.
PciPlace read_pci_place(const std::string& device);

// root is the prefix of /sys, for tests.
std::vector<PciPlace> read_gpus(
    const std::string& root = "");  // NVIDIA's and AMD's display and 3D controllers

struct NetworkInterface {
  std::string name;
  PciPlace place;  // empty: not a device, such as loopback, veth or a bond
  bool up = false;
};
std::vector<NetworkInterface> read_network_interfaces(const std::string& root = "");

// Steps from one device up to the bridge that both are below, and down again. Below no common bridge: 1000, and 1000
// more on another NUMA node. UINT32_MAX: unknown.
uint32_t pci_distance(const PciPlace& one, const PciPlace& other) noexcept;

}  // namespace towline
