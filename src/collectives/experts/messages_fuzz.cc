// Whatever comes as a notice, or as a rank's description, decodes to nothing or to what encodes again.
#include "collectives/experts/messages.h"

#include <cstdlib>

#include "collectives/experts/handover.h"
#include "support/fuzz_accepted.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  using namespace towline::collectives::experts;  // NOLINT: short names
  const std::span<const uint8_t> bytes{data, size};
  const auto expect = [&](const std::vector<uint8_t>& again) {
    towline::fuzz::accepted();
    if (again != std::vector<uint8_t>(bytes.begin(), bytes.end())) std::abort();
  };
  if (const auto words = decode_words(bytes)) expect(encode(*words));
  if (const auto exchange = decode_exchange(bytes, 3)) expect(encode(*exchange));
  if (const auto description = decode_description(bytes)) expect(encode(*description));
  return 0;
}
