// Parses any bytes as requests of a client, in pieces of all sizes, and applies them to values. The result
// must not depend on the pieces, and nothing may be kept beyond the limits.
#include <cstdlib>

#include "rendezvous/store_requests.h"
#include "support/fuzz_accepted.h"

namespace {

using namespace towline::rendezvous;  // NOLINT: one file
using Result = StoreRequestReader::Result;

constexpr uint64_t kMostBytes = 4096;

struct Outcome {
  std::vector<std::string> done;
  bool broken = false;
  bool operator==(const Outcome&) const = default;
};

void apply(StoreRequest& request, StoreValues& values, std::string& done) {
  bool made = false;
  int64_t sum = 0;
  for (const std::string& key : request.keys) {
    done += key;
    switch (request.query) {
      case StoreQuery::kSet:
        done += values.set(key, request.value, made) ? "set" : "full";
        break;
      case StoreQuery::kAdd:
        if (values.add(key, request.number, sum, made)) done += std::to_string(sum);
        break;
      case StoreQuery::kDelete:
        done += values.erase(key) ? "gone" : "none";
        break;
      default:
        if (const StoreValue value = values.get(key)) done.append(value->begin(), value->end());
    }
  }
  if (values.bytes() > kMostBytes) std::abort();
}

Outcome run(std::span<const uint8_t> bytes, size_t piece) {
  StoreRequestReader reader;
  StoreValues values(kMostBytes);
  Outcome outcome;
  while (!bytes.empty()) {
    auto part = bytes.first(std::min(piece, bytes.size()));
    bytes = bytes.subspan(part.size());
    while (!part.empty()) {
      const size_t before = part.size();
      const Result result = reader.take(part);
      if (result == Result::kBroken) {
        outcome.broken = true;
        return outcome;
      }
      if (result == Result::kMore && !part.empty()) std::abort();
      if (part.size() == before) std::abort();
      if (result != Result::kWhole) continue;
      towline::fuzz::accepted();
      outcome.done.emplace_back(1, static_cast<char>(reader.request().query));
      apply(reader.request(), values, outcome.done.back());
    }
  }
  return outcome;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const uint8_t> bytes(data, size);
  const Outcome whole = run(bytes, size + 1);
  if (run(bytes, 1) != whole || run(bytes, 7) != whole) std::abort();
  return 0;
}
