// Requests to replay, in the format of the traces that the Mooncake project published.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tool::replay {

// Tokens that one prefix hash stands for.
inline constexpr uint32_t kHashBlockTokens = 512;

struct Request {
  uint64_t timestamp_ms = 0;  // arrival, from the start of the trace
  uint32_t input_tokens = 0;
  uint32_t output_tokens = 0;
  std::vector<uint64_t> hashes;  // one for each started block of 512 tokens; equal means the same prefix

  // Tokens of block `index`; the last one may have fewer.
  [[nodiscard]] uint32_t block_tokens(size_t index) const {
    const uint64_t start = uint64_t{index} * kHashBlockTokens;
    const uint64_t left = input_tokens > start ? input_tokens - start : 0;
    return left < kHashBlockTokens ? static_cast<uint32_t>(left) : kHashBlockTokens;
  }
};

// One line of a trace. Throws Failure whose text begins with `where` and says what is wrong.
[[nodiscard]] Request parse_request(std::string_view line, const std::string& where);

// The first `limit` requests of a file; empty lines are skipped. Throws Failure with file and line number.
[[nodiscard]] std::vector<Request> read_trace(const std::string& path, size_t limit);

// Figures of a list of requests.
struct TraceShape {
  size_t requests = 0;
  double median_input_tokens = 0;
  double mean_input_tokens = 0;
  uint32_t largest_input_tokens = 0;
  uint64_t blocks = 0;
  uint64_t distinct_blocks = 0;
};
[[nodiscard]] TraceShape shape_of(const std::vector<Request>& requests);

}  // namespace tool::replay
