#include "fabric/verbs/endpoint.h"

#include <algorithm>

#include "base/wire.h"

namespace towline::fabric {
namespace {

constexpr uint8_t kVersion = 1;
constexpr uint32_t k24Bits = 0xffffff;
constexpr uint8_t kMaxMtu = 5;  // 4096 bytes

}  // namespace

std::vector<uint8_t> encode(const VerbsEndpoint& endpoint) {
  std::vector<uint8_t> bytes;
  WireWriter out{bytes};
  out.u8(kVersion);
  out.u8(static_cast<uint8_t>(endpoint.type));
  out.u8(endpoint.mtu);
  out.u8(endpoint.reads);
  out.u16(endpoint.lid);
  out.u32(endpoint.pair);
  out.u32(endpoint.first_psn);
  out.raw(endpoint.gid);
  return bytes;
}

std::optional<VerbsEndpoint> decode_verbs_endpoint(std::span<const uint8_t> bytes) {
  WireReader in{bytes};
  if (in.u8() != kVersion) return std::nullopt;
  VerbsEndpoint endpoint;
  const uint8_t type = in.u8();
  endpoint.type = static_cast<GidType>(type);
  endpoint.mtu = in.u8();
  endpoint.reads = in.u8();
  endpoint.lid = in.u16();
  endpoint.pair = in.u32();
  endpoint.first_psn = in.u32();
  const auto gid = in.raw(endpoint.gid.size());
  if (!in.ok() || in.remaining() != 0 || type > 2) return std::nullopt;
  if (endpoint.mtu == 0 || endpoint.mtu > kMaxMtu || endpoint.pair > k24Bits || endpoint.first_psn > k24Bits)
    return std::nullopt;
  std::copy(gid.begin(), gid.end(), endpoint.gid.begin());
  return endpoint;
}

}  // namespace towline::fabric
