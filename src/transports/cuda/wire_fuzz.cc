// Whatever comes over the socket or in the metadata decodes or is refused.
#include <cstddef>
#include <cstdint>

#include "transports/cuda/wire.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  const std::span<const uint8_t> packet{data, bytes};
  using namespace towline::cuda;
  (void)decode_ask(packet);
  (void)decode_answer(packet);
  (void)decode_token(packet);
  return 0;
}
