// The table of libtowline_experts.so, over NVIDIA's GPUs or over others.
#pragma once

#include "gpu/kernel_device.h"
#include "towline/plugin/experts.h"

namespace towline::collectives::experts {

const towline_experts_table_v1& nvidia_table();
// For tests: over the device that the function returns. One for the process.
const towline_experts_table_v1& table_over(cuda::KernelDevice& (*device)());

}  // namespace towline::collectives::experts
