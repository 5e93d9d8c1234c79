#include "transports/tcpx/nic_choice.h"

#include <algorithm>
#include <cctype>
#include <optional>
#include <string_view>

#include <fmt/format.h>

#include "base/os/pci.h"

namespace towline::tcpx {
namespace {

std::string join(const std::vector<std::string>& names) { return fmt::format("{}", fmt::join(names, ", ")); }

// A distance for people to read.
std::string steps(uint32_t distance) {
  if (distance == UINT32_MAX) return "at an unknown distance";
  if (distance < 1000) return fmt::format("{} steps away on PCI", distance);
  return distance < 2000 ? "below another root of PCI" : "on another NUMA node";
}

std::vector<NetworkInterface> candidates_of(const std::vector<std::string>& wanted, const std::string& root) {
  std::vector<NetworkInterface> all = read_network_interfaces(root);
  const bool any = wanted.size() == 1 && wanted[0] == "auto";
  std::erase_if(all, [&](const NetworkInterface& one) {
    if (any) return !one.up || one.place.path.empty();
    return std::find(wanted.begin(), wanted.end(), one.name) == wanted.end();
  });
  return all;
}

std::optional<PciPlace> find_gpu(const std::vector<PciPlace>& gpus, const std::string& address) {
  if (address.empty()) return gpus.size() == 1 ? std::optional(gpus[0]) : std::nullopt;
  const auto found =
      std::find_if(gpus.begin(), gpus.end(), [&](const PciPlace& gpu) { return gpu.address() == address; });
  return found == gpus.end() ? std::nullopt : std::optional(*found);
}

std::vector<std::string> nearest(const std::vector<NetworkInterface>& nics, const PciPlace& gpu,
                                 uint32_t& distance) {
  distance = UINT32_MAX;
  for (const NetworkInterface& nic : nics) distance = std::min(distance, pci_distance(nic.place, gpu));
  std::vector<std::string> names;
  for (const NetworkInterface& nic : nics)
    if (pci_distance(nic.place, gpu) == distance) names.push_back(nic.name);
  return names;
}

// A name that was given is taken, and said to be the wrong one where another is nearer.
NicChoice take_named(const std::string& name, const std::optional<PciPlace>& gpu, const std::string& root) {
  NicChoice choice = {name, "tuning.tcpx.interface names it"};
  if (!gpu) return choice;
  const std::vector<NetworkInterface> all = candidates_of({"auto"}, root);
  const auto own = std::find_if(all.begin(), all.end(), [&](const auto& nic) { return nic.name == name; });
  if (own == all.end()) return choice;
  const uint32_t here = pci_distance(own->place, *gpu);
  uint32_t least = 0;
  const std::vector<std::string> nearer = nearest(all, *gpu, least);
  choice.why += fmt::format("; it is {} from GPU {}", steps(here), gpu->address());
  if (least < here) choice.why += fmt::format(", and {} is nearer ({})", nearer[0], steps(least));
  return choice;
}

}  // namespace

std::string pci_address(const std::string& text) {
  constexpr std::string_view kForm = "xxxx:xx:xx.x";
  std::string address = text.size() == kForm.size() + 4 && text.starts_with("0000") ? text.substr(4) : text;
  if (address.size() != kForm.size()) return "";
  for (std::size_t i = 0; i < kForm.size(); ++i) {
    const auto letter = static_cast<unsigned char>(address[i]);
    if (kForm[i] == 'x' ? std::isxdigit(letter) == 0 : letter != kForm[i]) return "";
    address[i] = static_cast<char>(std::tolower(letter));
  }
  return address;
}

NicChoice choose_nic(const std::vector<std::string>& wanted, const std::string& gpu,
                     const std::string& root) {
  if (wanted.empty()) return {"", "it is not set"};
  const std::vector<PciPlace> gpus = read_gpus(root);
  const std::optional<PciPlace> place = find_gpu(gpus, gpu);
  if (!gpu.empty() && !place) return {"", fmt::format("this host has no GPU at {} (tuning.tcpx.gpu)", gpu)};
  if (wanted.size() == 1 && wanted[0] != "auto") return take_named(wanted[0], place, root);
  const std::vector<NetworkInterface> nics = candidates_of(wanted, root);
  if (nics.empty())
    return {"", wanted.size() == 1 ? "this host has no interface on PCI that is up"
                                   : fmt::format("this host has no interface named {}", join(wanted))};
  if (nics.size() == 1) return {nics[0].name, "it is the only one"};
  if (!place)
    return {"",
            fmt::format("this host has {} GPUs: name one in tuning.tcpx.gpu, so that the nearest NIC is used",
                        gpus.size())};
  uint32_t distance = 0;
  const std::vector<std::string> near = nearest(nics, *place, distance);
  std::size_t turn = 0;
  for (const PciPlace& other : gpus) {
    uint32_t ignored = 0;
    if (other.address() == place->address()) break;
    turn += nearest(nics, other, ignored) == near ? 1 : 0;
  }
  const std::string& name = near[turn % near.size()];
  return {name, fmt::format("it is {} from GPU {}{}", steps(distance), place->address(),
                            near.size() == 1 ? "" : fmt::format(", as {} are", join(near)))};
}

}  // namespace towline::tcpx
