#include "fabric/topology.h"

#include <fmt/format.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "fabric/domain.h"

namespace towline::fabric {
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

std::string driver_of(const fs::path& device) {
  std::error_code error;
  const fs::path driver = fs::canonical(device / "driver", error);
  return error ? std::string{} : driver.filename().string();
}

// "4: ACTIVE"
std::string after_colon(const std::string& text) {
  const std::size_t colon = text.find(": ");
  return colon == std::string::npos ? text : text.substr(colon + 2);
}

template <class Distance>
uint32_t nearest(std::span<const PciPlace> rails, Distance&& distance) noexcept {
  uint32_t best = UINT32_MAX;
  uint32_t mask = 0;
  const std::size_t count = std::min<std::size_t>(rails.size(), 32);
  for (std::size_t i = 0; i < count; ++i) {
    const uint32_t here = distance(rails[i]);
    if (here < best) {
      best = here;
      mask = 0;
    }
    if (here == best) mask |= 1u << i;
  }
  return best == UINT32_MAX ? UINT32_MAX : mask;
}

}  // namespace

std::string RdmaPort::rail() const {
  return driver == "efa" ? fmt::format("ofi:efa/{}-rdm", device) : fmt::format("verbs:{}/{}", device, port);
}

std::vector<RdmaPort> read_rdma_ports(const std::string& root) {
  std::vector<RdmaPort> ports;
  for (const fs::path& device : entries_of(root + "/sys/class/infiniband")) {
    RdmaPort made;
    made.device = device.filename().string();
    made.place = read_pci_place(device / "device");
    made.driver = driver_of(device / "device");
    std::error_code error;
    // Soft-RoCE names the interface that it stands on.
    made.software = made.place.path.empty() || fs::exists(device / "parent", error);
    for (const fs::path& port : entries_of(device / "ports")) {
      made.port = static_cast<uint8_t>(std::atoi(port.filename().c_str()));
      made.state = after_colon(read_line(port / "state"));
      made.active = made.state == "ACTIVE";
      made.rate = read_line(port / "rate");
      if (made.port != 0) ports.push_back(made);
    }
  }
  return ports;
}

int32_t numa_node_of_device(const std::string& device, const std::string& root) {
  return read_pci_place(root + "/sys/class/infiniband/" + device + "/device").numa_node;
}

uint32_t nearest_rails(std::span<const PciPlace> rails, const PciPlace& device) noexcept {
  return nearest(rails, [&](const PciPlace& rail) { return pci_distance(rail, device); });
}

uint32_t rails_of_node(std::span<const PciPlace> rails, int32_t numa_node) noexcept {
  if (numa_node < 0) return UINT32_MAX;
  return nearest(rails, [&](const PciPlace& rail) {
    return rail.numa_node < 0 ? UINT32_MAX : uint32_t{rail.numa_node != numa_node};
  });
}

RailChoice choose_rails(const std::vector<RdmaPort>& ports) {
  RailChoice choice;
  std::string left_out;
  const auto leave_out = [&](const RdmaPort& port, const std::string& why) {
    left_out += fmt::format("{}{}/{} {}", left_out.empty() ? "" : ", ", port.device, port.port, why);
  };
  for (const RdmaPort& port : ports) {
    if (port.software)
      leave_out(port, "is software (name it in tuning.rdma.rails)");
    else if (!port.active)
      leave_out(port, "is " + (port.state.empty() ? std::string{"in no known state"} : port.state));
    else if (choice.rails.size() == kMaxRails)
      leave_out(port, "is one too many");
    else
      choice.rails.push_back(port.rail());
  }
  if (ports.empty()) {
    choice.reason = "this host has no RDMA device";
  } else if (choice.rails.empty()) {
    choice.reason = "this host has no usable RDMA port: " + left_out;
  } else {
    choice.reason = "every active RDMA port";
    if (!left_out.empty()) choice.reason += "; not " + left_out;
  }
  return choice;
}

int32_t numa_node_of(const void* address) noexcept {
  constexpr unsigned long kNode = 1;     // MPOL_F_NODE
  constexpr unsigned long kAddress = 2;  // MPOL_F_ADDR
  int node = -1;
  if (syscall(SYS_get_mempolicy, &node, nullptr, 0UL, address, kNode | kAddress) != 0) return -1;
  return node;
}

}  // namespace towline::fabric
