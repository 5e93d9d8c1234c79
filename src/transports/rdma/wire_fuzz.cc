// Whatever a peer sends over the carrier, or puts into its metadata, decodes to nothing or to what encodes again.
#include <cstdlib>

#include "support/fuzz_accepted.h"
#include "transports/rdma/wire.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  using namespace towline::rdma;  // NOLINT: short names
  const std::span<const uint8_t> bytes{data, size};
  (void)kind_of(bytes);
  (void)control_in(bytes);
  if (const auto ask = decode_ask(bytes)) {
    if (decode_ask(encode(*ask))->key != ask->key) std::abort();
    towline::fuzz::accepted();
  }
  if (const auto answer = decode_answer(bytes)) {
    towline::fuzz::accepted();
    const auto again = decode_answer(encode(*answer));
    if (!again || again->key != answer->key || again->reason != answer->reason ||
        again->memory.rails != answer->memory.rails)
      std::abort();
  }
  if (const auto hello = decode_hello(bytes)) {
    if (!decode_hello(encode_hello(*hello))) std::abort();
    towline::fuzz::accepted();
  }
  if (const auto address = decode_address(bytes)) {
    towline::fuzz::accepted();
    const auto again = decode_address(encode(*address));
    if (!again || again->kinds != address->kinds || again->carrier != address->carrier) std::abort();
  }
  return 0;
}
