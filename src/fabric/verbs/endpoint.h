// The data that one end of a reliable connection sends to the other.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "fabric/verbs/gid.h"

namespace towline::fabric {

struct VerbsEndpoint {
  GidType type = GidType::kInfiniBand;
  uint8_t mtu = 0;         // ibv_mtu
  uint8_t reads = 1;       // RDMA READs of the other end that this one answers at a time
  uint16_t lid = 0;        // of InfiniBand
  uint32_t pair = 0;       // queue pair's number, 24 bits
  uint32_t first_psn = 0;  // of the packets that this end sends, 24 bits
  std::array<uint8_t, 16> gid{};
};

std::vector<uint8_t> encode(const VerbsEndpoint& endpoint);
std::optional<VerbsEndpoint> decode_verbs_endpoint(std::span<const uint8_t> bytes);

}  // namespace towline::fabric
