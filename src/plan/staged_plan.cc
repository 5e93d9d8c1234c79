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

// One segment of a plan that writes objects.
struct Placed {
  uint32_t object;  // the number of its region
  uint32_t source;
  uint64_t object_at;
  uint64_t source_at;
  uint64_t length;
  uint64_t plan_begin;
};

std::vector<Placed> in_objects_order(const Plan& whole, bool far_written) {
  std::vector<Placed> all;
  plugin::Cursor cursor(whole.view());
  towline_segment window[64];
  uint64_t position = 0;
  while (const size_t count = cursor.next(window, std::size(window), kLongestPiece)) {
    for (const towline_segment& segment : std::span(window, count)) {
      Placed one{segment.local_region, segment.remote_region, segment.local,
                 segment.remote,       segment.length,        position};
      if (far_written) {
        std::swap(one.object, one.source);
        std::swap(one.object_at, one.source_at);
      }
      all.push_back(one);
      position += segment.length;
    }
  }
  const auto before = [](const Placed& one, const Placed& other) {
    return one.object != other.object ? one.object < other.object : one.object_at < other.object_at;
  };
  if (!std::is_sorted(all.begin(), all.end(), before)) std::sort(all.begin(), all.end(), before);
  return all;
}

// The op that moves the same bytes as `op` does, for the side that is its local one.
constexpr uint32_t turned(uint32_t op) noexcept { return op == TOWLINE_READ ? TOWLINE_WRITE : TOWLINE_READ; }

}  // namespace

std::vector<StagedColumn> stage_plan(const Plan& whole, uint32_t op, const Bounce& bounce) {
  struct Sides {
    Pieces near;
    Pieces far;
  };
  std::vector<Sides> sides(bounce.slots);
  plugin::Cursor cursor(whole.view());
  towline_segment window[64];
  for (uint64_t slot = 0; !cursor.done(); slot = (slot + 1) % bounce.slots) {
    uint64_t at = bounce.address + slot * bounce.chunk_bytes;
    for (uint64_t left = bounce.chunk_bytes; left != 0 && !cursor.done();) {
      const size_t count = cursor.next(window, std::size(window), left);
      for (const towline_segment& segment : std::span(window, count)) {
        const auto length = static_cast<uint32_t>(segment.length);
        sides[slot].near.append({at, length, 0}, {segment.local, length, segment.local_region});
        sides[slot].far.append({at, length, 0}, {segment.remote, length, segment.remote_region});
        at += segment.length;
        left -= segment.length;
      }
    }
  }
  std::vector<StagedColumn> result;
  result.reserve(sides.size());
  for (Sides& side : sides) {
    StagedLeg near = make_leg(side.near, {&bounce.region, 1}, *whole.view().local, turned(op));
    StagedLeg far = make_leg(side.far, {&bounce.region, 1}, *whole.view().remote, op);
    side = {};
    result.push_back({std::move(near), std::move(far)});
  }
  return result;
}

StagedObjects stage_objects(const Plan& whole, uint32_t op, const Bounce& bounce) {
  const bool far_written = op == TOWLINE_WRITE;
  std::vector<Pieces> fill(bounce.slots);
  Pieces written;
  StagedObjects result;
  const Placed* before = nullptr;
  uint64_t position = 0;
  const std::vector<Placed> all = in_objects_order(whole, far_written);
  for (const Placed& one : all) {
    if (before == nullptr || before->object != one.object)
      result.objects.push_back({0, position, one.plan_begin, one.plan_begin});
    before = &one;
    StagedObject& object = result.objects.back();
    object.bytes += one.length;
    object.end += one.length;
    object.plan_begin = std::min(object.plan_begin, one.plan_begin);
    object.plan_end = std::max(object.plan_end, one.plan_begin + one.length);
    for (uint64_t done = 0; done < one.length;) {
      const uint64_t slot = position / bounce.chunk_bytes % bounce.slots;
      const uint64_t in_chunk = position % bounce.chunk_bytes;
      const auto length = static_cast<uint32_t>(std::min(one.length - done, bounce.chunk_bytes - in_chunk));
      const towline_flat_block memory = {bounce.address + slot * bounce.chunk_bytes + in_chunk, length, 0};
      fill[slot].append(memory, {one.source_at + done, length, one.source});
      written.append(memory, {one.object_at + done, length, one.object});
      done += length;
      position += length;
    }
  }
  const towline_plan& view = whole.view();
  const towline_list& objects = far_written ? *view.remote : *view.local;
  const towline_list& sources = far_written ? *view.local : *view.remote;
  const StagedLeg all_written = make_leg(written, {&bounce.region, 1}, objects, TOWLINE_WRITE);
  for (const Pieces& pieces : fill) {
    StagedLeg filled = make_leg(pieces, {&bounce.region, 1}, sources, TOWLINE_READ);
    StagedLeg shared{all_written.memory, all_written.target,
                     Plan::in_order(*all_written.memory, *all_written.target, TOWLINE_WRITE)};
    if (far_written)
      result.columns.push_back({std::move(filled), std::move(shared)});
    else
      result.columns.push_back({std::move(shared), std::move(filled)});
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
