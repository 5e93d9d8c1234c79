// For tests of lists, plans and cursors: random lists, and what they mean said in the plainest way.
#pragma once

#include <towline/towline.h>
#include <towline/plugin/cursor.hpp>

#include <chrono>
#include <cstdint>
#include <memory>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/random.h"
#include "plan/plan.h"

namespace towline::testing {

// Address and length of the region in most tests.
inline constexpr uint64_t kBase = 0x100000;
inline constexpr uint64_t kSpan = uint64_t{1} << 50;

struct Byte {  // of a plan
  uint64_t local;
  uint64_t remote;
  friend bool operator==(const Byte&, const Byte&) = default;
};

struct Block {
  uint64_t address;
  uint64_t length;
  friend bool operator==(const Block&, const Block&) = default;
};

inline std::vector<Block> expand(const std::vector<towline_blocks_t>& entries) {
  std::vector<Block> blocks;
  for (const towline_blocks_t& entry : entries) {
    uint64_t index[TOWLINE_MAX_DIMENSIONS] = {};
    for (;;) {
      uint64_t address = entry.address;
      for (uint32_t d = 0; d < entry.dimensions; ++d) address += index[d] * entry.stride[d];
      blocks.push_back({address, entry.length});
      uint32_t d = entry.dimensions;
      while (d > 0 && ++index[d - 1] == entry.count[d - 1]) index[--d] = 0;
      if (d == 0) break;
    }
  }
  return blocks;
}

inline towline_region_ref region(uint64_t key, uint64_t address, uint64_t bytes, uint32_t access = 3,
                                 uint32_t flags = 0) {
  return {key, address, bytes, 0, TOWLINE_MEMORY_DRAM, access, flags, 0};
}

inline towline_blocks_t entry(uint64_t address, uint64_t length,
                              std::vector<std::pair<uint64_t, uint64_t>> dimensions = {}) {
  towline_blocks_t result = {};
  result.address = address;
  result.length = length;
  result.dimensions = static_cast<uint32_t>(dimensions.size());
  for (size_t d = 0; d < dimensions.size(); ++d) {
    result.count[d] = dimensions[d].first;
    result.stride[d] = dimensions[d].second;
  }
  return result;
}

inline towline_picks_t pick_indices(const std::vector<uint32_t>& indices) {
  return {indices.data(), 4, 0, 0, 0, indices.size()};
}
inline towline_picks_t pick_indices(const std::vector<uint64_t>& indices) {
  return {indices.data(), 8, 0, 0, 0, indices.size()};
}
inline towline_picks_t pick_range(uint64_t start, uint64_t step, uint64_t count) {
  return {nullptr, 0, 0, start, step, count};
}

// All segments of [begin, end), with windows of at most `capacity` segments and `max_bytes` bytes.
inline std::vector<towline_segment> walk(plugin::Cursor& cursor, size_t capacity = 64,
                                         uint64_t max_bytes = UINT64_MAX) {
  std::vector<towline_segment> all;
  std::vector<towline_segment> window(capacity);
  while (const size_t count = cursor.next(window.data(), capacity, max_bytes))
    all.insert(all.end(), window.begin(), window.begin() + static_cast<ptrdiff_t>(count));
  return all;
}

inline std::vector<Byte> bytes_of(const std::vector<towline_segment>& segments) {
  std::vector<Byte> bytes;
  for (const towline_segment& segment : segments)
    for (uint64_t i = 0; i < segment.length; ++i) bytes.push_back({segment.local + i, segment.remote + i});
  return bytes;
}

// Calls `use` while a thread writes two values to one place by turns, until the status it gives has changed
// often enough for a write to have come in the middle of a call; for 1 s at most.
template <class Value, class Use>
void while_written(Value& place, Value one, Value other, Use&& use) {
  constexpr int kChanges = 50;
  const std::jthread writer([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      __atomic_store_n(&place, other, __ATOMIC_RELAXED);
      __atomic_store_n(&place, one, __ATOMIC_RELAXED);
    }
  });
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  Status last = use();
  for (int changes = 0; changes < kChanges && std::chrono::steady_clock::now() < end;) {
    const Status status = use();
    changes += status != last ? 1 : 0;
    last = status;
  }
}

// The status and text of what the call throws; {kOk, ""} when it does not.
template <class Call>
std::pair<Status, std::string> error_of(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    return {error.code(), error.message()};
  }
  return {Status::kOk, ""};
}

}  // namespace towline::testing
