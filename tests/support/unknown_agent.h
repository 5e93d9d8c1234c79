// The metadata of an agent that does not exist: what a stranger can make up.
#pragma once

#include <cstddef>
#include <string>

#include "base/id.h"
#include "metadata/blob/blob.h"
#include "towline/towline.h"

namespace towline::support {

inline metadata::PeerMetadata unknown_agent(const std::string& name, std::size_t regions = 0) {
  metadata::PeerMetadata metadata;
  metadata.identity.name = name;
  metadata.identity.incarnation = Id::random();
  metadata.identity.host.boot_id = Id::random();
  metadata.identity.host.pid = 1;
  metadata.identity.host.pid_namespace = 1;
  for (std::size_t i = 0; i < regions; ++i) {
    towline_region_ref& region = metadata.regions.emplace_back().region;
    region.key = random_u64();
    region.address = (i + 1) << 20;
    region.bytes = 1 << 20;
    region.access = TOWLINE_ACCESS_ALL;
  }
  return metadata;
}

}  // namespace towline::support
