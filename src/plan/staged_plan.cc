#include "plan/staged_plan.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <utility>

#include "towline/plugin/cursor.hpp"

namespace towline {

namespace {

struct Pieces {
  std::vector<towline_flat_block> memory;
  std::vector<towline_flat_block> target;

  void append(uint64_t at, uint64_t address, uint32_t region, uint64_t length) {
    if (!memory.empty()) {
      towline_flat_block& last = target.back();
      const bool follows = last.address + last.length == address && last.region == region;
      // A slot's next chunk begins where this one began, never where it ended.
      if (follows && memory.back().address + last.length == at) {
        last.length += static_cast<uint32_t>(length);
        memory.back().length = last.length;
        return;
      }
    }
    memory.push_back({at, static_cast<uint32_t>(length), 0});
    target.push_back({address, static_cast<uint32_t>(length), region});
  }
};

StagedLeg make_leg(const Pieces& pieces, const towline_region_ref& memory, const towline_list& target,
                   uint32_t op) {
  auto ours = ResolvedList::from_pieces(pieces.memory, {&memory, 1});
  auto theirs = ResolvedList::from_pieces(pieces.target, {target.regions, target.region_count});
  Plan plan = Plan::in_order(*ours, *theirs, op);
  return {std::move(ours), std::move(theirs), std::move(plan)};
}

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
        sides[column].near.append(at, segment.local, segment.local_region, segment.length);
        sides[column].far.append(at, segment.remote, segment.remote_region, segment.length);
        at += segment.length;
        left -= segment.length;
      }
    }
  }
  const bool read = op == TOWLINE_READ;
  std::vector<StagedColumn> result;
  result.reserve(columns);
  for (Sides& side : sides) {
    StagedLeg near = make_leg(side.near, memory, *whole.view().local, read ? TOWLINE_WRITE : TOWLINE_READ);
    StagedLeg far = make_leg(side.far, memory, *whole.view().remote, op);
    side = {};
    result.push_back({std::move(near), std::move(far)});
  }
  return result;
}

}  // namespace towline
