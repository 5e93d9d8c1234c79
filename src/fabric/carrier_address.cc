// The address that an application hands over.
#include "base/wire.h"
#include "fabric/carrier.h"

namespace towline::fabric {
namespace {

constexpr uint32_t kCarrierMagic = 0x31'42'46'54;  // "TFB1"
constexpr std::size_t kMaxHostBytes = 255;

}  // namespace

std::vector<uint8_t> encode(const CarrierAddress& address) {
  std::vector<uint8_t> bytes;
  WireWriter out{bytes, kMaxCarrierBytes};
  out.u32(kCarrierMagic);
  out.u8(kControlVersion);
  out.u64(address.ticket.hi);
  out.u64(address.ticket.lo);
  out.u8(static_cast<uint8_t>(address.endpoints.size()));
  for (const Endpoint& endpoint : address.endpoints) {
    out.string16(endpoint.host);
    out.u16(endpoint.port);
  }
  out.bytes16(encode(address.engine));
  return out.ok() ? bytes : std::vector<uint8_t>{};
}

std::optional<CarrierAddress> decode_carrier_address(std::span<const uint8_t> bytes) {
  if (bytes.size() > kMaxCarrierBytes) return std::nullopt;
  WireReader in{bytes};
  if (in.u32() != kCarrierMagic || in.u8() != kControlVersion) return std::nullopt;
  CarrierAddress address;
  address.ticket.hi = in.u64();
  address.ticket.lo = in.u64();
  const uint8_t endpoints = in.u8();
  if (endpoints == 0 || endpoints > kMaxCarrierEndpoints) return std::nullopt;
  for (uint8_t i = 0; i < endpoints; ++i) {
    Endpoint endpoint;
    endpoint.host = std::string{in.string16(kMaxHostBytes)};
    endpoint.port = in.u16();
    if (!in.ok() || endpoint.port == 0 || endpoint.host.find('\0') != std::string::npos) return std::nullopt;
    address.endpoints.push_back(std::move(endpoint));
  }
  const auto engine = decode_address(in.bytes16());
  if (!in.ok() || in.remaining() != 0 || !engine || address.ticket.is_none()) return std::nullopt;
  address.engine = *engine;
  return address;
}

}  // namespace towline::fabric
