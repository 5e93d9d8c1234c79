// The backends that this folder publishes: one code, under names of its own for each library that users ask for.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/config/settings_table.h"
#include "towline/plugin/backend.hpp"

namespace towline::rdma {

// The rails that nobody named, and why they.
struct DefaultRails {
  std::vector<std::string> names;
  std::string why;
};

struct Flavour {
  const char* name;  // of the backend, and of its settings
  uint64_t mark;     // of its carrier: turns the agent's incarnation into the carrier's
  const char* (*carrier_setting)(const plugin::Host& host, const char* key);
  // Throws plugin::Failure: kUnsupported where this host has none, kInvalidArgument names a setting.
  DefaultRails (*default_rails)(const plugin::Host& host);

  [[nodiscard]] std::string key(std::string_view of) const {
    return setting_name(std::string(name) + "." + std::string(of));
  }
};

extern const Flavour kRdma;       // every active port of this host's RDMA devices
extern const Flavour kUcx;        // one rail of UCX
extern const Flavour kLibfabric;  // libfabric's ports: EFA, else sockets

}  // namespace towline::rdma
