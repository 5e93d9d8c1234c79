// Device over NVIDIA's driver. One for the process: contexts, modules and what the driver was told of memory
// belong to the process, not to an agent.
#pragma once

#include <memory>

#include "gpu/device.h"
#include "gpu/driver_api.h"

namespace towline::cuda {

// Throws Error where the driver is absent or too old, or the plugin was built without kernels. Nothing of the
// process is touched until Device::start().
Device& nvidia_device();
// The driver's functions for that device, and a GPU's primary context, which stays for good.
const driver::Api& nvidia_api();
driver::Context nvidia_context(uint32_t gpu);
// Sets the GPU's UUID, and whether it is an instance of MIG. Throws Error.
void identify(const driver::Api& api, driver::Device device, Gpu& gpu);
// What may be done with a stream of the application's, for copies in the context `mine`, which is current. Throws Error.
StreamState look_at_stream(const driver::Api& api, driver::Context mine, void* stream);
// The multiprocessors that a wish reserves there; null: none.
driver::GreenContext nvidia_green(uint32_t gpu, const ReserveWish& wish);

}  // namespace towline::cuda
