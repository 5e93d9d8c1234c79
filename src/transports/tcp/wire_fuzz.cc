// Whatever comes over a new socket or in the metadata decodes or is refused. Packets get a length and a checksum
// that fit, so that the fields are reached; what was taken must survive being packed again.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "base/copy/crc32c.h"
#include "base/wire.h"
#include "support/fuzz_accepted.h"
#include "transports/tcp/wire.h"

namespace {

using namespace towline::tcp;  // NOLINT: one file

template <class Packet>
void round_trip(std::span<const uint8_t> bytes) {
  Packet packet;
  if (unpack(bytes, packet) != nullptr) return;
  towline::fuzz::accepted();
  Packet again;
  if (unpack(pack(packet), again) != nullptr) std::abort();
}

std::vector<uint8_t> mended(std::span<const uint8_t> input, uint32_t magic) {
  constexpr size_t kChecksumBytes = 4;
  std::vector<uint8_t> packet(input.begin(), input.end());
  packet.resize(std::clamp(packet.size(), kPrefixBytes, kMaxPacketBytes - kChecksumBytes));
  const auto bytes = static_cast<uint16_t>(packet.size() + kChecksumBytes);
  std::memcpy(packet.data(), &magic, sizeof magic);
  std::memcpy(packet.data() + 6, &bytes, sizeof bytes);
  const uint32_t checksum = towline::crc32c(packet);
  towline::WireWriter(packet).u32(checksum);
  return packet;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const uint8_t> bytes{data, size};
  round_trip<Hello>(bytes);
  round_trip<Reply>(bytes);
  round_trip<Hello>(mended(bytes, kHelloMagic));
  round_trip<Reply>(mended(bytes, kReplyMagic));
  round_trip<LandingToken>(bytes);
  std::vector<std::string> endpoints;
  if (unpack_address(bytes, endpoints) == nullptr) towline::fuzz::accepted();
  return 0;
}
