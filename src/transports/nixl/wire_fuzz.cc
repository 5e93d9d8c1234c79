// Whatever a peer sends over the carrier, or puts into its metadata, decodes to nothing or to what encodes again.
#include <cstdlib>

#include "support/fuzz_accepted.h"
#include "transports/nixl/wire.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  using namespace towline::nixl_net;  // NOLINT: short names
  const std::span<const uint8_t> bytes{data, size};
  (void)kind_of(bytes);
  if (const auto hello = decode_hello(bytes)) {
    towline::fuzz::accepted();
    const auto again = decode_hello(encode(*hello));
    if (!again || again->worker != hello->worker || again->info != hello->info) std::abort();
  }
  if (const auto ask = decode_ask(bytes)) {
    towline::fuzz::accepted();
    if (decode_ask(encode(*ask))->key != ask->key) std::abort();
  }
  if (const auto answer = decode_answer(bytes)) {
    towline::fuzz::accepted();
    const auto again = decode_answer(encode(*answer));
    if (!again || again->key != answer->key || again->status != answer->status ||
        again->reason != answer->reason || again->public_data != answer->public_data)
      std::abort();
  }
  if (const auto address = decode_address(bytes)) {
    towline::fuzz::accepted();
    const auto again = decode_address(encode(*address));
    if (!again || again->type != address->type || again->carrier != address->carrier) std::abort();
  }
  return 0;
}
