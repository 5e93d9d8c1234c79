// Any bytes from the socket, the connection or the metadata decode or are refused.
#include <cstddef>
#include <cstdint>

#include "support/fuzz_accepted.h"
#include "transports/cuda/detour_wire.h"
#include "transports/cuda/wire.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  const std::span<const uint8_t> packet{data, bytes};
  using namespace towline::cuda;
  if (decode_ask(packet) || decode_answer(packet) || decode_token(packet)) towline::fuzz::accepted();
  Move move;
  Moved moved;
  std::vector<Stretch> stretches;
  if (is_detour_message(packet)) (void)is_move(packet);
  if (decode(packet, move, stretches) || decode(packet, moved)) towline::fuzz::accepted();
  return 0;
}
