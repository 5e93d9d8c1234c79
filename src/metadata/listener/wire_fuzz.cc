// The first bytes that a stranger sends to a metadata listener are a header or are refused. A header that was
// taken is packed to the same bytes, but for what a newer minor version may say in its flags.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "metadata/listener/wire.h"
#include "support/fuzz_accepted.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace towline::metadata::wire;  // NOLINT: one function
  constexpr size_t kFlags = 6;
  ExchangeHeader header;
  if (!unpack({data, size}, header)) return 0;
  towline::fuzz::accepted();
  if (size < kExchangeHeaderBytes) std::abort();
  const auto packed = pack(header);
  for (size_t i = 0; i < packed.size(); ++i)
    if (i != kFlags && i != kFlags + 1 && packed[i] != data[i]) std::abort();
  return 0;
}
