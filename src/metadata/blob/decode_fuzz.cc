// decode() takes any bytes: it answers with metadata or an Error. Half of the inputs get a header and a
// checksum that fit, so that the sections are reached. Decoded metadata must be the same after encoding it
// again.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/copy/crc32c.h"
#include "base/error.h"
#include "metadata/blob/blob.h"
#include "metadata/blob/wire.h"
#include "support/fuzz_accepted.h"

namespace towline::metadata {
namespace {

void round_trip(std::span<const uint8_t> blob) {
  PeerMetadata metadata;
  try {
    metadata = decode(blob);
  } catch (const Error&) {
    return;
  }
  fuzz::accepted();
  if (!(decode(encode(metadata)) == metadata)) std::abort();
  const PeerSummary summary = summarize(blob);
  if (summary.regions != metadata.regions.size() || summary.metadata.identity != metadata.identity)
    std::abort();
}

// The same bytes with magic, length, version and checksum put right.
std::vector<uint8_t> mended(std::span<const uint8_t> input) {
  std::vector<uint8_t> blob(input.begin(), input.end());
  blob.resize(std::max(blob.size(), wire::kHeaderBytes));
  const auto bytes = static_cast<uint32_t>(blob.size() + wire::kTrailerBytes);
  std::memcpy(blob.data(), &wire::kMagic, sizeof wire::kMagic);
  std::memcpy(blob.data() + 4, &bytes, sizeof bytes);
  blob[8] = wire::kMajor;
  const uint32_t checksum = crc32c(blob);
  WireWriter(blob).u32(checksum);
  return blob;
}

}  // namespace
}  // namespace towline::metadata

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const uint8_t> input(data, size);
  towline::metadata::round_trip(input);
  if (size > towline::metadata::wire::kTrailerBytes) {
    towline::metadata::round_trip(
        towline::metadata::mended(input.first(size - towline::metadata::wire::kTrailerBytes)));
  }
  return 0;
}
