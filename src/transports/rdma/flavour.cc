#include "transports/rdma/flavour.h"

#include <algorithm>

#include "fabric/topology.h"

namespace towline::rdma {
namespace {

// Two instances of tcp can't listen at one port. Faults are injected into transports, not into what carries them.
const char* carrier_setting(const plugin::Host& host, const char* key, const char* listen) {
  const towline_host_v1_t& table = *host.table();
  if (key == std::string_view{"tcp.listen"}) return table.config(table.context, listen, "");
  if (key == std::string_view{"faults"}) return "";
  return nullptr;
}

DefaultRails ports(const plugin::Host&) {
  fabric::RailChoice choice = fabric::choose_rails(fabric::read_rdma_ports());
  if (choice.rails.empty())
    throw plugin::Failure(Status::kUnsupported,
                          choice.reason + "; tuning.rdma.rails can name rails of other kinds");
  return {std::move(choice.rails), std::move(choice.reason)};
}

// Commas separate rails, so lists within a rail's name have +.
std::string with_plus(std::string text) {
  std::replace(text.begin(), text.end(), ',', '+');
  std::erase(text, ' ');
  return text;
}

DefaultRails ucx_rail(const plugin::Host& host) {
  std::string rail = "ucx:" + with_plus(host.config("tuning.ucx.transports", "auto"));
  if (const std::string devices = with_plus(host.config("tuning.ucx.devices", "")); !devices.empty())
    rail += "/" + devices;
  if (const std::string options = with_plus(host.config("tuning.ucx.options", "")); !options.empty())
    rail += "?" + options;
  return {{rail}, "by tuning.ucx.transports, tuning.ucx.devices and tuning.ucx.options"};
}

DefaultRails libfabric_rails(const plugin::Host& host) {
  const std::string provider = host.config("tuning.libfabric.provider", "auto");
  const std::string address = host.config("tuning.libfabric.address", "");
  const std::string at = address.empty() ? "" : "@" + address;
  if (provider != "auto") return {{"ofi:" + provider + at}, "by tuning.libfabric.provider"};
  fabric::RailChoice choice = fabric::choose_rails(fabric::read_rdma_ports());
  std::erase_if(choice.rails, [](const std::string& rail) { return !rail.starts_with("ofi:"); });
  if (!choice.rails.empty()) return {std::move(choice.rails), std::move(choice.reason)};
  return {{"ofi:tcp;ofi_rxm" + at}, "sockets, as this host has no EFA device"};
}

}  // namespace

const Flavour kRdma = {
    .name = "rdma",
    .mark = 0x72646d61,
    .carrier_setting = [](const plugin::Host& host,
                          const char* key) { return carrier_setting(host, key, "tuning.rdma.listen"); },
    .default_rails = ports,
};

const Flavour kUcx = {
    .name = "ucx",
    .mark = 0x75637821,
    .carrier_setting = [](const plugin::Host& host,
                          const char* key) { return carrier_setting(host, key, "tuning.ucx.listen"); },
    .default_rails = ucx_rail,
};

const Flavour kLibfabric = {
    .name = "libfabric",
    .mark = 0x6f666921,
    .carrier_setting = [](const plugin::Host& host,
                          const char* key) { return carrier_setting(host, key, "tuning.libfabric.listen"); },
    .default_rails = libfabric_rails,
};

}  // namespace towline::rdma
