// Any bytes from the socket, the connection or the metadata decode or are refused.
#include <cstddef>
#include <cstdint>

#include "transports/cuda/detour_wire.h"
#include "transports/cuda/wire.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  const std::span<const uint8_t> packet{data, bytes};
  using namespace towline::cuda;
  (void)decode_ask(packet);
  (void)decode_answer(packet);
  (void)decode_token(packet);
  Move move;
  Moved moved;
  std::vector<Stretch> stretches;
  if (is_detour_message(packet)) (void)is_move(packet);
  (void)decode(packet, move, stretches);
  (void)decode(packet, moved);
  return 0;
}
