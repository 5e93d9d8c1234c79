// The name that an application gives a region, and the layout that it declares for its memory.
#pragma once

#include <towline/layout.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace towline {

// Immutable once made; shared by a region and all descriptions of it.
struct RegionLabel {
  std::string name;              // 1 to TOWLINE_MAX_REGION_NAME_BYTES bytes of any kind but NUL
  towline_layout_t layout = {};  // dimensions 0: none
  [[nodiscard]] bool shaped() const noexcept { return layout.dimensions != 0; }
};

[[nodiscard]] bool same_layout(const towline_layout_t& one, const towline_layout_t& other) noexcept;
[[nodiscard]] bool is_region_name(std::string_view name) noexcept;

// Fills in strides that are all 0.
void complete(towline_layout_t& layout) noexcept;
// "" for a layout whose elements all lie within a region of so many bytes; else what is wrong with it.
[[nodiscard]] std::string wrong_with(const towline_layout_t& layout, uint64_t region_bytes);
// Where its last element ends. It is one that wrong_with() accepts.
[[nodiscard]] uint64_t end_of(const towline_layout_t& layout) noexcept;
// "32 x 1024 elements of 4096 bytes".
[[nodiscard]] std::string describe(const towline_layout_t& layout);

// The layout's elements as blocks of a region that begins at `address`.
[[nodiscard]] towline_blocks_t blocks_of(const towline_layout_t& layout, uint64_t address, uint32_t kind,
                                         uint64_t device) noexcept;

// How many elements `picks`, one entry for each dimension, stand for, and their indices, as far as there is room. Throws
// Error naming the dimension and the pick that is wrong.
uint64_t select_elements(const towline_layout_t& layout, std::span<const towline_picks_t> picks,
                         std::span<uint32_t> indices);

}  // namespace towline
