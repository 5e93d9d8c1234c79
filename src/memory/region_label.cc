#include "memory/region_label.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace towline {

namespace {

__extension__ using Wide = unsigned __int128;

// The picks of one dimension, read one by one.
class Chosen {
 public:
  Chosen(const towline_picks_t& picks, uint64_t count, std::size_t dimension)
      : picks_(picks), of_(count), dimension_(dimension) {
    all_ = picks.indices == nullptr && picks.count == 0 && picks.step == 0 && picks.start == 0;
    if (picks.indices != nullptr && picks.index_bytes != 4 && picks.index_bytes != 8)
      fail(Status::kInvalidArgument, "dimension {}: indices have {} bytes; they have 4 or 8", dimension,
           picks.index_bytes);
    if (!all_ && picks.indices == nullptr) check_range();
  }
  [[nodiscard]] uint64_t count() const noexcept { return all_ ? of_ : picks_.count; }
  [[nodiscard]] uint64_t at(uint64_t i) const {
    if (all_) return i;
    if (picks_.indices == nullptr) return picks_.start + i * picks_.step;
    const int64_t index = picks_.index_bytes == 4 ? static_cast<const int32_t*>(picks_.indices)[i]
                                                  : static_cast<const int64_t*>(picks_.indices)[i];
    if (index < 0 || static_cast<uint64_t>(index) >= of_)
      fail(Status::kOutOfRange, "dimension {} has {} elements: index {} at position {} of {} is out of range",
           dimension_, of_, index, i, picks_.count);
    return static_cast<uint64_t>(index);
  }

 private:
  void check_range() const {
    if (picks_.count == 0) return;
    if (Wide{picks_.start} + Wide{picks_.step} * (picks_.count - 1) >= of_)
      fail(Status::kOutOfRange, "dimension {} has {} elements: the range of {} from {} by {} leaves it",
           dimension_, of_, picks_.count, picks_.start, picks_.step);
  }

  const towline_picks_t& picks_;
  const uint64_t of_;
  const std::size_t dimension_;
  bool all_ = false;
};

}  // namespace

bool same_layout(const towline_layout_t& one, const towline_layout_t& other) noexcept {
  return one.element_bytes == other.element_bytes && one.dimensions == other.dimensions &&
         std::equal(one.count, one.count + one.dimensions, other.count) &&
         std::equal(one.stride, one.stride + one.dimensions, other.stride);
}

bool is_region_name(std::string_view name) noexcept {
  return !name.empty() && name.size() <= TOWLINE_MAX_REGION_NAME_BYTES &&
         name.find('\0') == std::string_view::npos;
}

void complete(towline_layout_t& layout) noexcept {
  const uint32_t dimensions = std::min<uint32_t>(layout.dimensions, TOWLINE_MAX_DIMENSIONS);
  if (std::any_of(layout.stride, layout.stride + dimensions, [](uint64_t stride) { return stride != 0; }))
    return;
  uint64_t stride = layout.element_bytes;
  for (uint32_t i = dimensions; i-- > 0;) {
    layout.stride[i] = stride;
    if (__builtin_mul_overflow(stride, layout.count[i], &stride)) stride = UINT64_MAX;
  }
}

std::string wrong_with(const towline_layout_t& layout, uint64_t region_bytes) {
  if (layout.dimensions == 0 || layout.dimensions > TOWLINE_MAX_DIMENSIONS)
    return fmt::format("has {} dimensions; it has 1 to {}", layout.dimensions, TOWLINE_MAX_DIMENSIONS);
  if (layout.element_bytes == 0) return "has elements of 0 bytes";
  Wide elements = 1;
  Wide end = layout.element_bytes;
  for (uint32_t i = 0; i < layout.dimensions; ++i) {
    if (layout.count[i] == 0) return fmt::format("has 0 elements in dimension {}", i);
    // Each factor is below 2^64 and the sums are checked one by one, so that nothing overflows.
    const Wide step = Wide{layout.stride[i]} * (layout.count[i] - 1);
    elements = elements * layout.count[i];
    if (elements > UINT32_MAX) return fmt::format("has more than {} elements", UINT32_MAX);
    if (step > region_bytes || (end += step) > region_bytes)
      return fmt::format("ends beyond the region's {} bytes: {}", region_bytes, describe(layout));
  }
  return end > region_bytes
             ? fmt::format("ends beyond the region's {} bytes: {}", region_bytes, describe(layout))
             : std::string();
}

uint64_t end_of(const towline_layout_t& layout) noexcept {
  uint64_t end = layout.element_bytes;
  for (uint32_t i = 0; i < layout.dimensions; ++i) end += layout.stride[i] * (layout.count[i] - 1);
  return end;
}

std::string describe(const towline_layout_t& layout) {
  std::string text;
  for (uint32_t i = 0; i < std::min<uint32_t>(layout.dimensions, TOWLINE_MAX_DIMENSIONS); ++i)
    text += fmt::format("{}{}", i == 0 ? "" : " x ", layout.count[i]);
  return fmt::format("{} elements of {} bytes", text, layout.element_bytes);
}

towline_blocks_t blocks_of(const towline_layout_t& layout, uint64_t address, uint32_t kind,
                           uint64_t device) noexcept {
  towline_blocks_t blocks = {};
  blocks.address = address;
  blocks.length = layout.element_bytes;
  blocks.kind = kind;
  blocks.device = device;
  blocks.dimensions = layout.dimensions;
  std::copy(layout.count, layout.count + layout.dimensions, blocks.count);
  std::copy(layout.stride, layout.stride + layout.dimensions, blocks.stride);
  return blocks;
}

uint64_t select_elements(const towline_layout_t& layout, std::span<const towline_picks_t> picks,
                         std::span<uint32_t> indices) {
  if (picks.size() != layout.dimensions)
    fail(Status::kInvalidArgument, "picks for {} dimensions; the layout has {}: {}", picks.size(),
         layout.dimensions, describe(layout));
  // From the innermost dimension outwards: the indices so far, repeated for each pick of the next one.
  uint64_t elements = 1;
  for (std::size_t i = 0; i < picks.size(); ++i) {
    const uint64_t count = Chosen(picks[i], layout.count[i], i).count();
    if (Wide{elements} * count > UINT32_MAX)
      fail(Status::kLimitExceeded, "the picks stand for more than {} elements", UINT32_MAX);
    elements *= count;
  }
  if (elements == 0 || indices.size() < elements) return elements;
  uint64_t below = 1;   // elements of one index of the dimension, in the layout
  uint64_t filled = 1;  // indices that are picked so far
  indices[0] = 0;
  for (std::size_t i = picks.size(); i-- > 0;) {
    const Chosen chosen(picks[i], layout.count[i], i);
    const uint64_t count = chosen.count();
    // From behind, since the first `filled` are read for every pick, and written by the first.
    for (uint64_t at = count; at-- > 0;) {
      const auto base = static_cast<uint32_t>(chosen.at(at) * below);
      for (uint64_t j = 0; j < filled; ++j) indices[at * filled + j] = base + indices[j];
    }
    filled *= count;
    below *= layout.count[i];
  }
  return elements;
}

}  // namespace towline
