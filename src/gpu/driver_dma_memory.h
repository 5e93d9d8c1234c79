// Memory on a GPU as a dma-buf of the kernel's, from NVIDIA's driver.
#pragma once

#include <memory>
#include <string>

#include "gpu/device.h"
#include "gpu/driver_api.h"

namespace towline::cuda {

// Throws Error that says what GPU, driver or kernel lack. `api` outlives it.
[[nodiscard]] std::unique_ptr<DmaMemory> make_driver_dma_memory(const driver::Api& api,
                                                                driver::Context context, uint32_t gpu,
                                                                uint64_t bytes);

// The same of memory that the application has allocated.
[[nodiscard]] DmaExport export_driver_memory(const driver::Api& api, driver::Context context, uint32_t gpu,
                                             uint64_t address, uint64_t bytes);

// "0000:04:00.0"; empty: the driver does not say.
[[nodiscard]] std::string pci_address_of(const driver::Api& api, driver::Device gpu);

}  // namespace towline::cuda
