// Whatever a server sends, its answer is taken or refused; nothing else happens.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "storage/object/answers.h"
#include "storage/object/names.h"
#include "support/fuzz_accepted.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  using namespace towline::object;  // NOLINT
  const std::string_view text(reinterpret_cast<const char*>(data), bytes);
  const Headers headers = {{"location", std::string(text)}, {"x-amz-bucket-region", std::string(text)}};
  for (const long status : {200L, 301L, 400L, 403L, 503L}) (void)decode_refusal(status, headers, text);
  const auto range = decode_content_range(text);
  if (range && range->begin >= range->end) __builtin_trap();
  const bool ids = !decode_upload_id(text).empty() || !decode_etag(text).empty();
  const bool lists = decode_listing(text) || decode_uploads(text) || decode_azure_listing(text);
  const bool values = range || decode_number(text) || decode_time(text);
  const bool keys = decode_assumed_role(text) || decode_instance_keys(text) || decode_bearer_token(text);
  if (ids || lists || values || keys || carries_error(text)) towline::fuzz::accepted();
  if (percent_decode(percent_encode(text, true)) != text) __builtin_trap();
  return 0;
}
