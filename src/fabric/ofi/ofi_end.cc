#include "fabric/ofi/ofi_end.h"

#include "base/wire.h"
#include "fabric/domain.h"

namespace towline::fabric {
namespace {

// No provider's address begins with it: earlier versions sent addresses alone.
constexpr uint8_t kVersion = 1;

}  // namespace

std::vector<uint8_t> encode(const OfiEnd& end) {
  std::vector<uint8_t> bytes;
  WireWriter out{bytes};
  out.u8(kVersion);
  out.u64(end.token);
  out.bytes16(end.name);
  return bytes;
}

std::optional<OfiEnd> decode_ofi_end(std::span<const uint8_t> bytes) {
  if (bytes.size() > kMaxEndpointBytes) return std::nullopt;
  WireReader in{bytes};
  if (in.u8() != kVersion) return std::nullopt;
  OfiEnd end;
  end.token = in.u64();
  const auto name = in.bytes16();
  if (!in.ok() || in.remaining() != 0 || name.empty()) return std::nullopt;
  end.name.assign(name.begin(), name.end());
  return end;
}

}  // namespace towline::fabric
