#include "plan/staged_plan.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <utility>

#include "towline/plugin/cursor.hpp"

namespace towline {

namespace {

constexpr uint64_t kLongestPiece = 1 << 30;

struct Pieces {
  std::vector<towline_flat_block> memory;
  std::vector<towline_flat_block> target;

  void append(const towline_flat_block& in_memory, const towline_flat_block& in_target) {
    if (!memory.empty() && follows(memory.back(), in_memory) && follows(target.back(), in_target)) {
      memory.back().length += in_memory.length;
      target.back().length += in_target.length;
      return;
    }
    memory.push_back(in_memory);
    target.push_back(in_target);
  }

 private:
  static bool follows(const towline_flat_block& one, const towline_flat_block& next) noexcept {
    return one.address + one.length == next.address && one.region == next.region &&
           next.length <= UINT32_MAX - one.length;
  }
};

StagedLeg make_leg(const Pieces& pieces, std::span<const towline_region_ref> memory,
                   const towline_list& target, uint32_t op) {
  auto ours = ResolvedList::from_pieces(pieces.memory, memory);
  auto theirs = ResolvedList::from_pieces(pieces.target, {target.regions, target.region_count});
  Plan plan = Plan::in_order(*ours, *theirs, op);
  return {std::move(ours), std::move(theirs), std::move(plan)};
}

// The op that moves the same bytes as `op` does, for the side that is its local one.
constexpr uint32_t turned(uint32_t op) noexcept { return op == TOWLINE_READ ? TOWLINE_WRITE : TOWLINE_READ; }

}  // namespace

std::vector<StagedColumn> stage_plan(const Plan& whole, uint32_t op, const towline_region_ref& memory,
                                     uint64_t address, uint64_t chunk_bytes, uint32_t slots,
                                     uint64_t columns) {
  struct Sides {
    Pieces near;
    Pieces far;
  };
  std::vector<Sides> sides(columns);
  plugin::Cursor cursor(whole.view());
  towline_segment window[64];
  for (uint64_t column = 0; !cursor.done(); column = (column + 1) % columns) {
    uint64_t at = address + column % slots * chunk_bytes;
    for (uint64_t left = chunk_bytes; left != 0 && !cursor.done();) {
      const size_t count = cursor.next(window, std::size(window), left);
      for (const towline_segment& segment : std::span(window, count)) {
        const auto length = static_cast<uint32_t>(segment.length);
        sides[column].near.append({at, length, 0}, {segment.local, length, segment.local_region});
        sides[column].far.append({at, length, 0}, {segment.remote, length, segment.remote_region});
        at += segment.length;
        left -= segment.length;
      }
    }
  }
  std::vector<StagedColumn> result;
  result.reserve(columns);
  for (Sides& side : sides) {
    StagedLeg near = make_leg(side.near, {&memory, 1}, *whole.view().local, turned(op));
    StagedLeg far = make_leg(side.far, {&memory, 1}, *whole.view().remote, op);
    side = {};
    result.push_back({std::move(near), std::move(far)});
  }
  return result;
}

StagedLeg straight_plan(const Plan& whole, uint32_t op, std::span<const towline_region_ref> here) {
  const towline_list& remote = *whole.view().remote;
  Pieces pieces;
  plugin::Cursor cursor(whole.view());
  towline_segment window[64];
  while (const size_t count = cursor.next(window, std::size(window), kLongestPiece)) {
    for (const towline_segment& segment : std::span(window, count)) {
      const auto length = static_cast<uint32_t>(segment.length);
      const uint32_t region = segment.remote_region;
      const uint64_t address = segment.remote - remote.regions[region].address + here[region].address;
      pieces.append({address, length, region}, {segment.local, length, segment.local_region});
    }
  }
  return make_leg(pieces, here, *whole.view().local, turned(op));
}

}  // namespace towline
