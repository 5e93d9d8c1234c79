// GPUs made of host memory, for the Python packages' tests: the table of the backend over them, and streams. A program
// registers the table under a name and gives a stream's address where it would give a GPU's.
#include "collectives/gpu/gpu_table.h"
#include "collectives/gpu/memory_pool.h"
#include "gpu/fake/fake_device.h"
#include "gpu/fake/fake_kernels.h"
#include "towline/export.h"

using towline::cuda::fake::FakeStream;

extern "C" {

TOWLINE_API const void* towline_gpu_model_table() {
  return &towline::collectives::gpu::table_over(towline::cuda::fake::fake_kernel_device);
}
TOWLINE_API void* towline_gpu_model_stream() { return new FakeStream(0); }
// From the pool; never freed.
TOWLINE_API void* towline_gpu_model_malloc(uint64_t bytes) {
  return towline::collectives::gpu::pool_allocate(towline::cuda::fake::fake_kernel_device(), 0, bytes);
}
// Carries out everything in the stream.
TOWLINE_API void towline_gpu_model_drain(void* stream) { static_cast<FakeStream*>(stream)->drain(); }
// Begins nothing meanwhile.
TOWLINE_API void towline_gpu_model_hold(void* stream, int held) {
  static_cast<FakeStream*>(stream)->hold(held != 0);
}
}
