// Every decoder of etcd's answers, with any bytes. Accepted base64 must encode to the same text again.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/error.h"
#include "metadata/etcd/codec.h"
#include "support/fuzz_accepted.h"

namespace {

using namespace towline;        // NOLINT: one file
using namespace towline::etcd;  // NOLINT: the same

template <class Decode>
void run(Decode decode, std::string_view text) {
  try {
    (void)decode(text);
    towline::fuzz::accepted();
  } catch (const Error& error) {
    if (error.code() != Status::kProtocol) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  run(decode_header, text);
  run(decode_range, text);
  run(decode_create, text);
  run(decode_remove, text);
  run(decode_grant, text);
  run(decode_keepalive, text);
  run(decode_watch, text);
  run(decode_token, text);
  (void)decode_refusal(200, text);
  (void)decode_refusal(500, text);
  std::string bytes;
  if (from_base64(text, bytes)) {
    towline::fuzz::accepted();
    if (to_base64(bytes) != text) std::abort();
  }
  if (!from_base64(to_base64(text), bytes) || bytes != text) std::abort();
  return 0;
}
