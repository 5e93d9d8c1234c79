#include "replay/copy_limit.h"

#include <chrono>
#include <cstring>
#include <numeric>
#include <vector>

#include "mix.h"
#include "samples.h"
#include "units.h"

namespace tool::replay {
namespace {

using std::chrono::steady_clock;

constexpr int kRuns = 5;
constexpr double kRunSeconds = 0.1;

}  // namespace

double measure_copy_limit(const PoolLayout& layout, HeadRange part) {
  if (layout.pages < 2) return 0;
  std::vector<uint32_t> order(layout.pages);
  std::iota(order.begin(), order.end(), 0u);
  Random{1}.shuffle(order);
  const uint64_t offset = uint64_t{part.first - layout.heads.first} * layout.shape.head_bytes;
  const bool whole = part.count == layout.heads.count;
  const uint64_t length = whole ? layout.page_bytes() : uint64_t{part.count} * layout.shape.head_bytes;
  const uint32_t rows = whole ? 1 : layout.shape.page_tokens;
  const uint32_t half = layout.pages / 2;
  uint32_t layer_plane = 0;
  Samples rates;
  for (int run = 0; run < kRuns; ++run) {
    const auto start = steady_clock::now();
    uint64_t bytes = 0;
    for (; seconds_since(start) < kRunSeconds;
         layer_plane = (layer_plane + 1) % layout.shape.layer_planes()) {
      for (uint32_t at = 0; at < half; ++at) {
        auto* to = reinterpret_cast<std::byte*>(layout.page_address(layer_plane, order[at]) + offset);
        const auto* from =
            reinterpret_cast<const std::byte*>(layout.page_address(layer_plane, order[at + half]) + offset);
        for (uint32_t row = 0; row < rows; ++row) {
          std::memcpy(to + row * layout.token_bytes(), from + row * layout.token_bytes(), length);
        }
      }
      bytes += uint64_t{half} * rows * length;
    }
    rates.add(static_cast<double>(bytes) / seconds_since(start));
  }
  return rates.median();
}

}  // namespace tool::replay
