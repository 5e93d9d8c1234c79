// Whatever stands on the board or comes through a rank's socket decodes to nothing or to what encodes again.
#include <cstdlib>

#include "gpu/symmetric_wire.h"
#include "support/fuzz_accepted.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  using namespace towline::cuda;  // NOLINT: short names
  const std::span<const uint8_t> bytes{data, size};
  if (const auto notice = decode_piece_notice(bytes)) {
    towline::fuzz::accepted();
    const bool inside = notice->offset <= notice->bytes && notice->length <= notice->bytes - notice->offset;
    const std::vector<uint8_t> again = encode(*notice);
    if (!inside || again != std::vector<uint8_t>(bytes.begin(), bytes.end())) std::abort();
  }
  if (const auto hello = decode_piece_hello(bytes)) {
    towline::fuzz::accepted();
    if (encode(*hello) != std::vector<uint8_t>(bytes.begin(), bytes.end())) std::abort();
  }
  return 0;
}
