#include "base/os/pci.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace towline {
namespace {

namespace fs = std::filesystem;

std::string read_line(const fs::path& file) {
  std::string line;
  std::ifstream in{file};
  std::getline(in, line);
  return line;
}

std::vector<fs::path> entries_of(const fs::path& folder) {
  std::vector<fs::path> entries;
  std::error_code error;
  for (fs::directory_iterator at{folder, error}, end; !error && at != end; at.increment(error))
    entries.push_back(at->path());
  std::sort(entries.begin(), entries.end());
  return entries;
}

bool is_pci_address(const std::string& name) noexcept {
  return name.size() >= 12 && name[4] == ':' && name[7] == ':' && name[10] == '.';
}

}  // namespace

// In the path of a device's folder every folder above it is a bridge.
PciPlace read_pci_place(const std::string& device) {
  PciPlace place;
  std::error_code error;
  const fs::path real = fs::canonical(device, error);
  if (error) return place;
  for (const fs::path& part : real)
    if (is_pci_address(part.string())) place.path.push_back(part.string());
  const std::string node = read_line(real / "numa_node");
  if (!node.empty() && !place.path.empty()) place.numa_node = std::atoi(node.c_str());
  return place;
}

std::vector<PciPlace> read_gpus(const std::string& root) {
  std::vector<PciPlace> gpus;
  for (const fs::path& device : entries_of(root + "/sys/bus/pci/devices")) {
    const std::string vendor = read_line(device / "vendor");
    const std::string sort = read_line(device / "class");
    const bool shows = sort.starts_with("0x0300") || sort.starts_with("0x0302") || sort.starts_with("0x1200");
    if ((vendor == "0x10de" || vendor == "0x1002") && shows) gpus.push_back(read_pci_place(device));
  }
  return gpus;
}

std::vector<NetworkInterface> read_network_interfaces(const std::string& root) {
  std::vector<NetworkInterface> interfaces;
  for (const fs::path& entry : entries_of(root + "/sys/class/net"))
    interfaces.push_back({entry.filename().string(), read_pci_place(entry / "device"),
                          read_line(entry / "operstate") == "up"});
  return interfaces;
}

uint32_t pci_distance(const PciPlace& one, const PciPlace& other) noexcept {
  if (one.path.empty() || other.path.empty()) return UINT32_MAX;
  const std::size_t most = std::min(one.path.size(), other.path.size());
  std::size_t common = 0;
  while (common < most && one.path[common] == other.path[common]) ++common;
  const auto steps = static_cast<uint32_t>(one.path.size() + other.path.size() - 2 * common);
  if (common != 0) return steps;
  return 1000 + steps + (one.numa_node != other.numa_node ? 1000 : 0);
}

}  // namespace towline
