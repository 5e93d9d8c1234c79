// GPU memory that other processes can map, for applications: their tensors lie in it (torch.cuda.MemPool, CuPy), and windows
// over it need no copies. The pool belongs to the process, as the GPU's memory does.
#pragma once

#include <cstdint>
#include <memory>

#include "gpu/kernel_device.h"

namespace towline::collectives::gpu {

// Null: there is no room, or no such GPU; the reason is logged. Bytes are whole pages of the GPU, zeroed.
void* pool_allocate(cuda::KernelDevice& device, uint32_t gpu, uint64_t bytes) noexcept;
// Memory stays mapped as long as a window uses it. Else this waits until the GPU has done all that the process has given it, as
// cudaFree does.
void pool_free(void* address) noexcept;

struct PoolPart {
  std::shared_ptr<cuda::SharedPiece> piece;  // null: not of the pool
  uint64_t offset = 0;
};
PoolPart pool_find(uint64_t address, uint64_t bytes);

}  // namespace towline::collectives::gpu
