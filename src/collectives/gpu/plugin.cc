// The GPU backend as a library: the backend `gpu` of communicators.
#include "collectives/gpu/gpu_table.h"
#include "collectives/gpu/memory_pool.h"
#include "towline/export.h"

extern "C" TOWLINE_API const towline_collective_table_v1_t* towline_collective_v1() {
  return &towline::collectives::gpu::nvidia_table();
}

// As torch's CUDAPluggableAllocator calls them. CuPy's PythonFunctionAllocator gives the same arguments.
extern "C" TOWLINE_API void* towline_gpu_malloc(int64_t bytes, int gpu, void* stream);
extern "C" TOWLINE_API void towline_gpu_free(void* address, int64_t bytes, int gpu, void* stream);

void* towline_gpu_malloc(int64_t bytes, int gpu, void*) {
  if (bytes <= 0 || gpu < 0) return nullptr;
  return towline::collectives::gpu::pool_allocate(towline::cuda::nvidia_kernel_device(),
                                                  static_cast<uint32_t>(gpu), static_cast<uint64_t>(bytes));
}

void towline_gpu_free(void* address, int64_t, int, void*) { towline::collectives::gpu::pool_free(address); }
