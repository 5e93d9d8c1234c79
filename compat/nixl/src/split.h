// When a request is moved by two of Towline's engines.
#pragma once

#include <cstdint>

namespace towline::nixl {

// On one host a copy is limited by one core. A request of this size takes longer than waking the second
// engine; at 1 MiB two engines were slower than one. Over a network both engines would share the same link.
inline constexpr uint64_t kSplitBytes = 2 << 20;
inline constexpr uint32_t kSplitEngines = 2;
// The setting that gives an agent the second one. It sleeps until a large request is split.
inline constexpr const char* kSplitConfig = "workers = 2\n";

}  // namespace towline::nixl
