// The configuration of one instance, keys "rdma.*", "ucx.*" or "libfabric.*"; README.md explains them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "towline/plugin/backend.hpp"
#include "transports/rdma/flavour.h"

namespace towline::rdma {

struct Settings {
  std::vector<std::string> rails;  // names as fabric/rails.h takes them, at least one
  bool automatic = false;          // chosen by what this host has
  std::string why_rails;           // for people: who chose them
  uint32_t connections = 64;       // of each rail, in each direction
  uint64_t slice_bytes = 0;        // 0: as the rail says
  uint64_t background_bytes = 0;   // regions from here on are registered in the background; 0: none

  // Throws plugin::Failure: kInvalidArgument names the value, kUnsupported says why there is no rail.
  static Settings read(const plugin::Host& host, const Flavour& flavour);
};

}  // namespace towline::rdma
