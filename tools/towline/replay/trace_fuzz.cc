// A line of a trace is a request or is refused with a text that says where. A request's blocks cover its tokens.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "failure.h"
#include "replay/trace.h"
#include "support/fuzz_accepted.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view line(reinterpret_cast<const char*>(data), size);
  try {
    const tool::replay::Request request = tool::replay::parse_request(line, "line 1");
    uint64_t tokens = 0;
    for (size_t i = 0; i < request.hashes.size(); ++i) tokens += request.block_tokens(i);
    if (tokens != request.input_tokens || request.hashes.empty()) std::abort();
    towline::fuzz::accepted();
  } catch (const tool::Failure& failure) {
    if (!std::string_view(failure.what()).starts_with("line 1: ")) std::abort();
  }
  return 0;
}
