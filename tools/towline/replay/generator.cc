#include "replay/generator.h"

#include <algorithm>
#include <cmath>

#include "mix.h"

namespace tool::replay {
namespace {

constexpr double kMedianInput = 6909;
// Limiting the longest input lowers the mean a little, so inputs are drawn with a slightly higher mean.
constexpr double kMeanInput = 12300;
constexpr double kLongestInput = 126195;
constexpr double kMedianOutput = 350;
constexpr double kMeanOutput = 400;
constexpr double kLongestOutput = 2000;
constexpr double kMeanGapMs = 299;
constexpr double kContinues = 0.52;
constexpr int kCandidates = 12;

// The longest of a few earlier requests that are shorter than this one, since a turn of a conversation is
// short compared with its history. Null if all are longer.
const Request* conversation_for(const Request& request, const std::vector<Request>& earlier, Random& random) {
  const Request* best = nullptr;
  for (int candidate = 0; candidate < kCandidates && !earlier.empty(); ++candidate) {
    const Request& other = earlier[random.below(earlier.size())];
    const bool fits = other.input_tokens + other.output_tokens <= request.input_tokens;
    if (fits && (best == nullptr || other.input_tokens > best->input_tokens)) best = &other;
  }
  return best;
}

}  // namespace

std::vector<Request> generate_trace(size_t count, uint64_t seed) {
  Random random{seed};
  std::vector<Request> requests;
  requests.reserve(count);
  double time_ms = 0;
  uint64_t next_hash = 1;
  for (size_t index = 0; index < count; ++index) {
    Request request;
    request.timestamp_ms = static_cast<uint64_t>(time_ms);
    time_ms += random.exponential(kMeanGapMs);
    const double input = std::clamp(random.lognormal(kMedianInput, kMeanInput), 16.0, kLongestInput);
    const double output = std::clamp(random.lognormal(kMedianOutput, kMeanOutput), 1.0, kLongestOutput);
    request.input_tokens = static_cast<uint32_t>(input);
    request.output_tokens = static_cast<uint32_t>(output);

    const size_t blocks = (request.input_tokens + kHashBlockTokens - 1) / kHashBlockTokens;
    request.hashes.push_back(0);
    const bool continues = random.uniform() < kContinues;
    if (const Request* before = continues ? conversation_for(request, requests, random) : nullptr) {
      const size_t whole = before->input_tokens / kHashBlockTokens;
      request.hashes.assign(before->hashes.begin(), before->hashes.begin() + static_cast<ptrdiff_t>(whole));
    }
    request.hashes.resize(std::min(std::max<size_t>(request.hashes.size(), 1), blocks));
    while (request.hashes.size() < blocks) request.hashes.push_back(next_hash++);
    requests.push_back(std::move(request));
  }
  return requests;
}

}  // namespace tool::replay
