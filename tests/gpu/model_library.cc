// GPUs made of host memory, for the Python packages' tests: the table of the backend over them, and streams. A program
// registers the table under a name and gives a stream's address where it would give a GPU's.
#include "collectives/experts/table.h"
#include "collectives/gpu/gpu_table.h"
#include "collectives/gpu/memory_pool.h"
#include "gpu/fake/fake_device.h"
#include "gpu/fake/fake_kernels.h"
#include "towline/export.h"
#include "towline/plugin/experts_functions.h"

using towline::cuda::fake::FakeStream;

extern "C" {

TOWLINE_API const void* towline_gpu_model_table() {
  return &towline::collectives::gpu::table_over(towline::cuda::fake::fake_kernel_device);
}
// As towline_experts_v1.
TOWLINE_API const void* towline_gpu_model_experts() {
  return &towline::collectives::experts::table_over(towline::cuda::fake::fake_kernel_device);
}
// Of experts_functions.h.
TOWLINE_API const void* towline_gpu_model_functions() {
  static const towline_experts_functions_v1 functions = towline_experts_functions();
  return &functions;
}
TOWLINE_API void* towline_gpu_model_stream() { return new FakeStream(0); }
// The pool: as towline_gpu_malloc and towline_gpu_free.
TOWLINE_API void* towline_gpu_model_malloc(int64_t bytes, int gpu, void* /*stream*/) {
  return towline::collectives::gpu::pool_allocate(towline::cuda::fake::fake_kernel_device(),
                                                  static_cast<uint32_t>(gpu), static_cast<uint64_t>(bytes));
}
TOWLINE_API void towline_gpu_model_free(void* address, int64_t /*bytes*/, int /*gpu*/, void* /*stream*/) {
  towline::collectives::gpu::pool_free(address);
}
// Carries out everything in the stream.
TOWLINE_API void towline_gpu_model_drain(void* stream) { static_cast<FakeStream*>(stream)->drain(); }
// Begins nothing meanwhile.
TOWLINE_API void towline_gpu_model_hold(void* stream, int held) {
  static_cast<FakeStream*>(stream)->hold(held != 0);
}
// Graphs, which are never freed.
TOWLINE_API void towline_gpu_model_record(void* stream) { static_cast<FakeStream*>(stream)->record(); }
TOWLINE_API void* towline_gpu_model_end_record(void* stream) {
  return static_cast<FakeStream*>(stream)->end_record();
}
TOWLINE_API void towline_gpu_model_replay(void* graph, void* stream) {
  static_cast<FakeStream*>(stream)->replay(*static_cast<const FakeStream::Graph*>(graph));
}
// The number of the graph that the stream records, or 0.
TOWLINE_API uint64_t towline_gpu_model_recording(void* stream) {
  return static_cast<FakeStream*>(stream)->recording();
}
}
