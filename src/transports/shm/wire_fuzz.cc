// Any bytes from the socket or in the metadata decode or are refused. Accepted ones decode again after
// encoding.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "support/fuzz_accepted.h"
#include "transports/shm/wire.h"

namespace {

template <class Decode>
void round_trip(std::span<const uint8_t> bytes, Decode decode) {
  const auto taken = decode(bytes);
  if (!taken) return;
  towline::fuzz::accepted();
  if (!decode(towline::shm::encode(*taken))) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace towline::shm;  // NOLINT: one function
  const std::span<const uint8_t> packet{data, size};
  const auto type = packet_type(packet);
  if (type == PacketType::kWake || type == PacketType::kGoodbye)
    towline::fuzz::accepted();  // nothing follows
  (void)packet_version(packet);
  round_trip(packet, decode_hello);
  round_trip(packet, decode_welcome);
  round_trip(packet, decode_refuse);
  round_trip(packet, decode_descriptor_request);
  round_trip(packet, decode_descriptor_answer);
  round_trip(packet, decode_address);
  return 0;
}
