// The NCCL backend behind its table (towline/plugin/collective.h).
#pragma once

#include "gpu/kernel_device.h"
#include "towline/plugin/collective.h"

namespace towline::collectives::nccl {

// Over NVIDIA's driver.
const towline_collective_table_v1_t& nvidia_table();
// Over another device, one for the process. For tests.
const towline_collective_table_v1_t& table_over(cuda::KernelDevice& (*device)());

}  // namespace towline::collectives::nccl
