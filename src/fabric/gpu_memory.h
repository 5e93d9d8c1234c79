// Memory of a GPU, for rails that read and write it themselves.
#pragma once

#include "base/error.h"
#include "fabric/domain.h"
#include "gpu/device.h"

namespace towline::fabric {

// Sets what `memory` names of the dma-buf that the GPU's driver makes of it; the descriptor is needed until the rails have
// registered it. Throws Error: there is no such GPU, or its driver exports nothing, with the driver's reason.
[[nodiscard]] inline cuda::DmaExport export_memory_of_gpu(cuda::Device& device, uint32_t gpu,
                                                          MemoryToRegister& memory) {
  const std::size_t gpus = device.gpus().size();
  if (gpu >= gpus) fail(Status::kNotFound, "there is no GPU {}: CUDA has {} in this process", gpu, gpus);
  cuda::DmaExport made = device.export_memory(gpu, reinterpret_cast<uint64_t>(memory.address), memory.bytes);
  memory.dmabuf_fd = made.dma_buf.get();
  memory.dmabuf_offset = made.offset;
  memory.device = gpu;
  return made;
}

}  // namespace towline::fabric
