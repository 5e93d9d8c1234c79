// The description shared by the real plugin and the tests' plugin over fake GPUs.
#pragma once

#include "base/clock.h"
#include "towline/plugin/backend.hpp"
#include "towline/towline.h"

namespace towline::cuda {

inline constexpr towline_move_v1 kMoves[] = {
    plugin::move(plugin::kReadAndWrite, plugin::kinds(TOWLINE_MEMORY_DRAM, TOWLINE_MEMORY_VRAM),
                 plugin::kinds(TOWLINE_MEMORY_DRAM, TOWLINE_MEMORY_VRAM), TOWLINE_WHERE_SAME_HOST)};

inline constexpr plugin::Description kDescription = {
    .name = "cuda",
    .version = "0.1.0",
    .text = "GPU memory of one host: a kernel on a GPU of this process moves the whole list",
    .traits = TOWLINE_TRAIT_ONE_SIDED,
    .moves = kMoves,
    .cost = 30,
    .worst_fence_ns = 1000 * kMillisecondNs,
    .fence_reason = "a copy that was begun runs to its end, at the speed of NVLink or PCIe",
};

template <class B>
towline_plugin_v1_t describe_plugin(int32_t (*usable)(char* reason, size_t capacity)) {
  return plugin::describe<B>(kDescription, usable);
}

}  // namespace towline::cuda
