// Which NIC receives payload for a GPU: one whose packets reach the GPU's memory by the fewest bridges.
#pragma once

#include <string>
#include <vector>

namespace towline::tcpx {

struct NicChoice {
  std::string interface;  // empty: none
  std::string why;        // this one, or none; for people
};

// `wanted`: names of interfaces, or "auto" for every one on PCI that is up. A single name is taken as it is. Among several
// the nearest to `gpu`, a PCI address, is taken; empty: to the host's only GPU. GPUs that have the same nearest ones
// take these in turn. root is the prefix of /sys, for tests.
[[nodiscard]] NicChoice choose_nic(const std::vector<std::string>& wanted, const std::string& gpu,
                                   const std::string& root = "");

// As the kernel writes it ("0000:04:00.0"), also of what nvidia-smi prints ("00000000:04:00.0").
// Empty if it is malformed.
[[nodiscard]] std::string pci_address(const std::string& text);

}  // namespace towline::tcpx
