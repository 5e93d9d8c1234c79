// The NCCL backend as a library: the backend `nccl` of communicators.
#include "collectives/nccl/nccl_table.h"
#include "towline/export.h"

extern "C" TOWLINE_API const towline_collective_table_v1_t* towline_collective_v1() {
  return &towline::collectives::nccl::nvidia_table();
}
