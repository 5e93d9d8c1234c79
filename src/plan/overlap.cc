#include "plan/overlap.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <span>
#include <type_traits>

#include "towline/plugin/cursor.hpp"

namespace towline {

namespace {

constexpr uint64_t kLeastBitmapBits = uint64_t{1} << 20;
constexpr uint64_t kBitmapBitsPerInterval = 512;

// Sets bits [begin, end); false when one was set before.
bool set_fresh_bits(std::vector<uint64_t>& bits, uint64_t begin, uint64_t end) noexcept {
  while (begin < end) {
    const uint64_t word = begin / 64;
    const uint64_t stop = std::min(end, (word + 1) * 64);
    const uint64_t width = stop - begin;
    const uint64_t mask = (width == 64 ? UINT64_MAX : (uint64_t{1} << width) - 1) << (begin % 64);
    if ((bits[word] & mask) != 0) return false;
    bits[word] |= mask;
    begin = stop;
  }
  return true;
}

template <class Block>
uint64_t bytes_of(const Block& block) noexcept {
  if constexpr (std::is_same_v<Block, Interval>) {
    return block.bytes;
  } else {
    return block.length;
  }
}

// Each begins where the one before has ended, or after it.
template <class Block>
bool ascends(std::span<const Block> blocks) noexcept {
  uint64_t end = 0;
  return std::all_of(blocks.begin(), blocks.end(), [&](const Block& block) {
    const bool after = block.address >= end;
    end = block.address + bytes_of(block);
    return after;
  });
}

// The result of one look at all blocks of one address space, without a branch for each: lists of 100,000 are
// made for one transfer. `length`: the length of every block, if they are equal.
struct Layout {
  uint64_t length = 0;
  uint64_t low = UINT64_MAX;
  uint64_t high = 0;    // where the last one ends
  uint64_t grains = 0;  // distances from the first one and lengths, or-ed
};

template <class Block>
Layout layout_of(std::span<const Block> blocks, uint64_t length) noexcept {
  Layout layout;
  layout.length = length;
  const uint64_t first = blocks.front().address;
  for (const Block& block : blocks) {
    layout.low = std::min(layout.low, block.address);
    layout.grains |= block.address - first;
    if (length != 0) {
      layout.high = std::max(layout.high, block.address);
    } else {
      layout.high = std::max(layout.high, block.address + bytes_of(block));
      layout.grains |= bytes_of(block);
    }
  }
  layout.high += length;
  layout.grains |= length;
  return layout;
}

// True: no two share a byte. False: not known. One bit for each grain, the largest power of two that divides
// every distance and length. All of one address space.
template <class Block>
bool disjoint_by_bitmap(std::span<const Block> blocks, const Layout& layout) {
  const int shift = std::countr_zero(layout.grains);
  const uint64_t bits = (layout.high - layout.low) >> shift;
  if (bits > std::max(kLeastBitmapBits, blocks.size() * kBitmapBitsPerInterval)) return false;
  std::vector<uint64_t> bitmap(bits / 64 + 1);
  if (layout.length >> shift == 1) {
    uint64_t twice = 0;
    for (const Block& block : blocks) {
      const uint64_t grain = (block.address - layout.low) >> shift;
      uint64_t& word = bitmap[grain / 64];
      const uint64_t mask = uint64_t{1} << (grain % 64);
      twice |= word & mask;
      word |= mask;
    }
    return twice == 0;
  }
  return std::all_of(blocks.begin(), blocks.end(), [&](const Block& block) {
    const uint64_t begin = (block.address - layout.low) >> shift;
    return set_fresh_bits(bitmap, begin, begin + (bytes_of(block) >> shift));
  });
}

bool in_one_space(std::span<const Interval> intervals) noexcept {
  return std::all_of(intervals.begin(), intervals.end(),
                     [&](const Interval& interval) { return interval.space == intervals.front().space; });
}

std::optional<std::pair<uint32_t, uint32_t>> find_overlap_by_sorting(std::vector<Interval>& intervals) {
  std::sort(intervals.begin(), intervals.end(), [](const Interval& a, const Interval& b) {
    if (a.space != b.space) return a.space < b.space;
    return a.address != b.address ? a.address < b.address : a.position < b.position;
  });
  for (size_t i = 1; i < intervals.size(); ++i) {
    const Interval& before = intervals[i - 1];
    if (before.space == intervals[i].space && intervals[i].address < before.address + before.bytes)
      return std::minmax(before.position, intervals[i].position);
  }
  return std::nullopt;
}

struct Hull {
  uint32_t space;
  uint64_t begin;
  uint64_t end;
  const towline_extent* extent;
};

enum class Answer { kNo, kYes, kUnknown };

// Within one extent. Strides that are each at least as long as what the shorter ones span cannot overlap.
Answer overlaps_itself(const towline_extent& extent, uint64_t& span) noexcept {
  std::pair<uint64_t, uint64_t> dimensions[TOWLINE_EXTENT_DIMENSIONS];  // stride, count; ascending
  uint32_t used = 0;
  for (uint32_t d = 0; d < extent.dimensions; ++d) {
    if (extent.count[d] == 1) continue;
    uint32_t at = used++;
    for (; at > 0 && dimensions[at - 1].first > extent.stride[d]; --at) dimensions[at] = dimensions[at - 1];
    dimensions[at] = {extent.stride[d], extent.count[d]};
  }
  span = extent.length;
  Answer answer = Answer::kNo;
  for (uint32_t d = 0; d < used; ++d) {
    const auto [stride, count] = dimensions[d];
    if (stride < extent.length) answer = Answer::kYes;
    if (stride < span && answer == Answer::kNo) answer = Answer::kUnknown;
    span += (count - 1) * stride;
  }
  return answer;
}

// True: extents whose hulls overlap have no byte in common, since all their strides have a common divisor and
// they lie at different places within it (keys and values in turn, heads of a token). False: not known.
bool disjoint_by_residue(std::vector<Hull>::const_iterator begin, std::vector<Hull>::const_iterator end) {
  uint64_t divisor = 0;
  for (auto hull = begin; hull != end; ++hull)
    for (uint32_t d = 0; d < hull->extent->dimensions; ++d)
      if (hull->extent->count[d] > 1) divisor = std::gcd(divisor, hull->extent->stride[d]);
  if (divisor == 0) return false;
  std::vector<std::pair<uint64_t, uint64_t>> places;  // begin, end
  for (auto hull = begin; hull != end; ++hull) {
    const uint64_t place = (hull->begin - begin->begin) % divisor;
    if (hull->extent->length > divisor) return false;
    places.emplace_back(place, place + hull->extent->length);
  }
  std::sort(places.begin(), places.end());
  for (size_t i = 1; i < places.size(); ++i)
    if (places[i].first < places[i - 1].second) return false;
  return places.back().second <= places.front().first + divisor;
}

void add_blocks(const towline_list& list, const towline_extent& extent, const std::vector<uint32_t>& spaces,
                std::vector<Interval>& intervals) {
  plugin::detail::ListReader reader(list);
  for (uint64_t block = extent.first_block; block < extent.first_block + extent.blocks;) {
    const plugin::detail::Row row = reader.row(block, 1);
    for (uint64_t i = 0; i < row.blocks; ++i)
      intervals.push_back(
          {row.address + i * row.stride, row.length, spaces[row.region], static_cast<uint32_t>(block + i)});
    block += row.blocks;
  }
}

bool extents_overlap(const towline_list& list, uint64_t max_blocks) {
  const std::vector<uint32_t> spaces = address_spaces(list);
  std::vector<Hull> hulls;
  std::vector<bool> doubtful(list.extent_count);
  hulls.reserve(list.extent_count);
  for (uint64_t i = 0; i < list.extent_count; ++i) {
    const towline_extent& extent = list.extents[i];
    uint64_t span = 0;
    const Answer answer = overlaps_itself(extent, span);
    if (answer == Answer::kYes) return true;
    doubtful[i] = answer == Answer::kUnknown;
    hulls.push_back({spaces[extent.region], extent.address, extent.address + span, &extent});
  }
  std::sort(hulls.begin(), hulls.end(), [](const Hull& a, const Hull& b) {
    return a.space != b.space ? a.space < b.space : a.begin < b.begin;
  });
  std::vector<Interval> intervals;
  for (auto begin = hulls.cbegin(); begin != hulls.cend();) {
    auto end = begin + 1;
    uint64_t reach = begin->end;
    bool unknown = doubtful[static_cast<size_t>(begin->extent - list.extents)];
    for (; end != hulls.cend() && end->space == begin->space && end->begin < reach; ++end) {
      reach = std::max(reach, end->end);
      unknown = unknown || doubtful[static_cast<size_t>(end->extent - list.extents)];
    }
    if (unknown || (end - begin > 1 && !disjoint_by_residue(begin, end))) {
      intervals.clear();
      uint64_t blocks = 0;
      for (auto hull = begin; hull != end; ++hull) blocks += hull->extent->blocks;
      if (blocks <= max_blocks) {
        intervals.reserve(blocks);
        for (auto hull = begin; hull != end; ++hull) add_blocks(list, *hull->extent, spaces, intervals);
        if (find_overlap(intervals)) return true;
      }
    }
    begin = end;
  }
  return false;
}

bool in_one_space(const towline_list& list) noexcept {
  const std::span<const towline_region_ref> regions(list.regions, list.region_count);
  return std::all_of(regions.begin(), regions.end(), [&](const towline_region_ref& region) {
    return region.kind == regions.front().kind && region.device == regions.front().device;
  });
}

bool flat_overlaps(const towline_list& list, uint64_t max_blocks) {
  const std::span<const towline_flat_block> blocks(list.flat, list.extent_count);
  const bool one_space = in_one_space(list);
  if (one_space && ascends(blocks)) return false;
  if (blocks.size() > max_blocks) return false;
  if (one_space && disjoint_by_bitmap(blocks, layout_of(blocks, list.block_length))) return false;
  const std::vector<uint32_t> spaces = address_spaces(list);
  std::vector<Interval> intervals;
  intervals.reserve(blocks.size());
  for (const towline_flat_block& block : blocks) {
    const auto position = static_cast<uint32_t>(&block - blocks.data());
    intervals.push_back({block.address, block.length, spaces[block.region], position});
  }
  return find_overlap_by_sorting(intervals).has_value();
}

}  // namespace

std::vector<uint32_t> address_spaces(const towline_list& list) {
  std::vector<uint32_t> spaces(list.region_count);
  std::vector<uint32_t> firsts;  // a region of each space
  for (uint32_t i = 0; i < list.region_count; ++i) {
    const auto same = std::find_if(firsts.begin(), firsts.end(), [&](uint32_t first) {
      return list.regions[first].kind == list.regions[i].kind &&
             list.regions[first].device == list.regions[i].device;
    });
    spaces[i] = static_cast<uint32_t>(same - firsts.begin());
    if (same == firsts.end()) firsts.push_back(i);
  }
  return spaces;
}

std::optional<std::pair<uint32_t, uint32_t>> find_overlap(std::vector<Interval>& intervals) {
  if (intervals.size() < 2) return std::nullopt;
  const std::span<const Interval> all(intervals);
  const bool alike = std::all_of(
      all.begin(), all.end(), [&](const Interval& interval) { return interval.bytes == all.front().bytes; });
  if (in_one_space(all) && disjoint_by_bitmap(all, layout_of(all, alike ? all.front().bytes : 0)))
    return std::nullopt;
  return find_overlap_by_sorting(intervals);
}

bool list_overlaps(const towline_list& list, uint64_t max_blocks) {
  return list.flat != nullptr ? flat_overlaps(list, max_blocks) : extents_overlap(list, max_blocks);
}

}  // namespace towline
