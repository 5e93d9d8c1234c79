// Decodes any bytes as the hello of a connection, as control frames, and as a rank's description of itself.
// Everything that is accepted must be the same after encoding it again.
#include <cstdlib>

#include "base/error.h"
#include "collectives/mesh_frames.h"
#include "rendezvous/rank_info.h"
#include "support/fuzz_accepted.h"

using namespace towline;               // NOLINT: one file
using namespace towline::collectives;  // NOLINT: the same

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const uint8_t> bytes(data, size);
  if (const auto hello = decode_hello(bytes)) {
    fuzz::accepted();
    const std::vector<uint8_t> again = encode(*hello);
    if (!std::equal(again.begin(), again.end(), bytes.begin(), bytes.end())) std::abort();
  }
  size_t taken = 0;
  while (const auto frame = decode_control(bytes.subspan(taken), taken)) {
    fuzz::accepted();
    if (taken > size) std::abort();
    size_t length = 0;
    const std::vector<uint8_t> again = encode_control(frame->type, frame->reason);
    const auto decoded = decode_control(again, length);
    if (!decoded || length != again.size() || decoded->reason.text != frame->reason.text) std::abort();
  }
  try {
    const rendezvous::RankInfo info = rendezvous::decode(bytes, 1);
    fuzz::accepted();
    const std::vector<uint8_t> again = encode(info);
    if (encode(rendezvous::decode(again, 1)) != again) std::abort();
  } catch (const Error& error) {
    if (error.code() != Status::kProtocol) std::abort();
  }
  return 0;
}
