// Device over NVIDIA's driver. One for the process: contexts, modules and what the driver was told of memory
// belong to the process, not to an agent.
#pragma once

#include <memory>

#include "gpu/device.h"

namespace towline::cuda {

// Throws Error where the driver is absent or too old, or the plugin was built without kernels. Nothing of the
// process is touched until Device::start().
Device& nvidia_device();

}  // namespace towline::cuda
