// What the real plugin and the one over the fake GPUs of the tests say of themselves.
#pragma once

#include "base/clock.h"
#include "towline/plugin/backend.hpp"
#include "towline/towline.h"

namespace towline::cuda {

inline constexpr plugin::Description kDescription = {
    .name = "cuda",
    .version = "0.1.0",
    .text = "GPU memory of one host: a kernel on a GPU of this process moves the whole list",
    .traits = TOWLINE_TRAIT_ONE_SIDED | TOWLINE_TRAIT_SAME_HOST,
    .kinds = 1u << TOWLINE_DRAM | 1u << TOWLINE_VRAM,
    .cost = 30,
    .worst_fence_ns = 1000 * kMillisecondNs,
    .fence_reason = "a copy that was begun runs to its end, at the speed of NVLink or PCIe",
};

}  // namespace towline::cuda
