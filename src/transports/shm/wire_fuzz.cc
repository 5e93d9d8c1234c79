// Whatever comes over the socket or in the metadata decodes or is refused.
#include <cstddef>
#include <cstdint>

#include "transports/shm/wire.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  const std::span<const uint8_t> packet{data, bytes};
  using namespace towline::shm;
  (void)packet_type(packet);
  (void)packet_version(packet);
  (void)decode_hello(packet);
  (void)decode_welcome(packet);
  (void)decode_refuse(packet);
  (void)decode_descriptor_request(packet);
  (void)decode_descriptor_answer(packet);
  (void)decode_address(packet);
  return 0;
}
