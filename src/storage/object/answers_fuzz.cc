// Whatever a server sends, its answer is taken or refused; nothing else happens.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "storage/object/answers.h"
#include "storage/object/names.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  using namespace towline::object;  // NOLINT
  const std::string_view text(reinterpret_cast<const char*>(data), bytes);
  const Headers headers = {{"location", std::string(text)}, {"x-amz-bucket-region", std::string(text)}};
  for (const long status : {200L, 301L, 400L, 403L, 503L}) (void)decode_refusal(status, headers, text);
  (void)carries_error(text);
  (void)decode_upload_id(text);
  (void)decode_etag(text);
  (void)decode_listing(text);
  (void)decode_uploads(text);
  if (const auto range = decode_content_range(text); range && range->begin >= range->end) __builtin_trap();
  (void)decode_number(text);
  (void)decode_time(text);
  (void)decode_assumed_role(text);
  (void)decode_instance_keys(text);
  if (percent_decode(percent_encode(text, true)) != text) __builtin_trap();
  return 0;
}
