#include "bench/row.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "failure.h"
#include "mix.h"

namespace tool::bench {
namespace {

constexpr uint64_t kRequestBytes = 64ull << 20;
constexpr uint64_t kMostBatch = 16384;
constexpr uint64_t kMostAreaBlocks = 4ull << 20;
constexpr uint64_t kStep = 0x9E3779B97F4A7C15;

std::byte* place_of(const Area& area, uint32_t block) {
  return reinterpret_cast<std::byte*>(area.base + uint64_t{block} * area.stride);
}

}  // namespace

Pattern parse_pattern(const std::string& text) {
  if (text == "pairwise") return Pattern::kPairwise;
  if (text == "manytoone") return Pattern::kManyToOne;
  if (text == "onetomany") return Pattern::kOneToMany;
  if (text == "tp") return Pattern::kTensorParallel;
  throw Failure{fmt::format("no pattern '{}': pairwise, manytoone, onetomany or tp", text)};
}

std::vector<std::string> sides_of(const std::string& from, const std::vector<std::string>& sides) {
  if (from == "both") return sides;
  if (std::ranges::find(sides, from) != sides.end()) return {from};
  throw Failure{fmt::format("--from {}: {} or both", from, fmt::join(sides, ", "))};
}

void check_pattern(Pattern pattern, uint32_t initiators, uint32_t targets) {
  const uint32_t most = std::max(initiators, targets);
  const uint32_t least = std::min(initiators, targets);
  if (least == 0 || most > 64) throw Failure{"initiators and targets: 1 to 64 each"};
  const bool fits = (pattern == Pattern::kPairwise && initiators == targets) ||
                    (pattern == Pattern::kManyToOne && targets == 1) ||
                    (pattern == Pattern::kOneToMany && initiators == 1) ||
                    (pattern == Pattern::kTensorParallel && most % least == 0);
  if (!fits) {
    throw Failure{
        fmt::format("{} initiators and {} targets: pairwise wants as many of each, manytoone one target, "
                    "onetomany one initiator, and "
                    "tp one number that divides the other",
                    initiators, targets)};
  }
}

std::vector<Share> shares_of(Pattern pattern, uint32_t initiators, uint32_t targets, uint32_t initiator,
                             uint64_t block_bytes) {
  const auto whole = [&](uint32_t target) {
    return Share{
        .target = target, .local_block = block_bytes, .remote_block = block_bytes, .length = block_bytes};
  };
  std::vector<Share> shares;
  switch (pattern) {
    case Pattern::kPairwise:
      shares.push_back(whole(initiator));
      break;
    case Pattern::kManyToOne:
      shares.push_back(whole(0));
      break;
    case Pattern::kOneToMany:
      for (uint32_t target = 0; target < targets; ++target) shares.push_back(whole(target));
      break;
    case Pattern::kTensorParallel: {
      const uint32_t ratio = std::max(initiators, targets) / std::min(initiators, targets);
      const uint64_t part = block_bytes / ratio;
      if (part * ratio != block_bytes) {
        throw Failure{
            fmt::format("blocks of {} bytes cannot be shared out over {} ranks", block_bytes, ratio)};
      }
      if (initiators > targets) {
        shares.push_back({.target = initiator / ratio,
                          .local_block = part,
                          .remote_block = block_bytes,
                          .remote_offset = initiator % ratio * part,
                          .length = part});
        break;
      }
      for (uint32_t at = 0; at < ratio; ++at) {
        shares.push_back({.target = initiator * ratio + at,
                          .local_block = block_bytes,
                          .remote_block = part,
                          .local_offset = at * part,
                          .length = part});
      }
      break;
    }
  }
  return shares;
}

uint64_t default_batch(uint64_t size) {
  return std::clamp<uint64_t>(kRequestBytes / std::max<uint64_t>(size, 1), 1, kMostBatch);
}

uint64_t area_blocks(const Row& row, uint64_t span_bytes) {
  return std::max(row.batch, std::min(span_bytes / row.size, kMostAreaBlocks));
}

std::vector<uint32_t> pick_blocks(const Row& row, uint64_t span_bytes, const Order& order) {
  std::vector<uint32_t> picks(area_blocks(row, span_bytes));
  std::iota(picks.begin(), picks.end(), 0u);
  if (!order.sequential) {
    Random random{mix(order.seed, order.initiator, order.thread, order.remote ? 1u : 0u)};
    for (uint64_t at = 0; at < row.batch; ++at)
      std::swap(picks[at], picks[at + random.below(picks.size() - at)]);
  }
  picks.resize(row.batch);
  return picks;
}

void fill_blocks(const Area& area, const std::vector<uint32_t>& picks, uint64_t epoch) {
  const uint64_t words = area.length / sizeof(uint64_t);
  for (size_t position = 0; position < picks.size(); ++position) {
    std::byte* place = place_of(area, picks[position]);
    uint64_t value = mix(area.identity, epoch, position);
    for (uint64_t word = 0; word < words; ++word, value += kStep) {
      std::memcpy(place + word * sizeof value, &value, sizeof value);
    }
    std::memcpy(place + words * sizeof value, &value, area.length % sizeof value);
  }
}

uint64_t count_wrong_blocks(const Area& area, const std::vector<uint32_t>& picks, uint64_t epoch) {
  const uint64_t words = area.length / sizeof(uint64_t);
  uint64_t wrong = 0;
  for (size_t position = 0; position < picks.size(); ++position) {
    const std::byte* place = place_of(area, picks[position]);
    uint64_t value = mix(area.identity, epoch, position);
    uint64_t differences = 0;
    for (uint64_t word = 0; word < words; ++word, value += kStep) {
      uint64_t found = 0;
      std::memcpy(&found, place + word * sizeof found, sizeof found);
      differences |= found ^ value;
    }
    const bool tail = std::memcmp(place + words * sizeof value, &value, area.length % sizeof value) == 0;
    wrong += differences != 0 || !tail ? 1 : 0;
  }
  return wrong;
}

}  // namespace tool::bench
