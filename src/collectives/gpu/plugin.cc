// The GPU backend as a library: the backend `gpu` of communicators.
#include "collectives/gpu/gpu_table.h"
#include "towline/export.h"

extern "C" TOWLINE_API const towline_collective_table_v1_t* towline_collective_v1() {
  return &towline::collectives::gpu::nvidia_table();
}
