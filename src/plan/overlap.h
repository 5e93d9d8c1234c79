// Do blocks share bytes? Asked of the side where bytes land.
#pragma once

#include <towline/plugin/plan.h>

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace towline {

// Bytes in one of several address spaces (memory kind and device).
struct Interval {
  uint64_t address;
  uint64_t bytes;
  uint32_t space;
  uint32_t position;  // whose it is
};

// For each region of a list the address space it lies in, as small numbers.
std::vector<uint32_t> address_spaces(const towline_list& list);

// Two that share a byte (positions in ascending order), or nothing. Linear where the addresses have a common
// grain and lie close enough for a bitmap, else by sorting. Reorders the intervals.
std::optional<std::pair<uint32_t, uint32_t>> find_overlap(std::vector<Interval>& intervals);

// Do two blocks of the list share a byte for certain? Exact for up to `max_blocks` blocks: lists that are
// obviously without overlap (ascending, or extents with strides that nest) are told without looking at
// blocks. Beyond that only overlap within one extent is found.
bool list_overlaps(const towline_list& list, uint64_t max_blocks);

}  // namespace towline
