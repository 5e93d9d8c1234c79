// Kinds of memory, in words.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <iterator>
#include <string>

#include "towline/towline.h"

namespace towline {

inline const char* kind_name(uint32_t kind) noexcept {
  constexpr const char* kNames[] = {"dram", "vram", "file", "block", "object"};
  return kind < std::size(kNames) ? kNames[kind] : "unknown";
}

// "vram on device 1"; "dram", which has no device.
inline std::string kind_text(uint32_t kind, uint64_t device) {
  if (kind == TOWLINE_MEMORY_DRAM && device == 0) return kind_name(kind);
  return fmt::format("{} on device {}", kind_name(kind), device);
}

}  // namespace towline
