#include "collectives/nccl/nccl_table.h"

#include "collectives/nccl/nccl_backend.h"
#include "collectives/streams/stream_table.h"

namespace towline::collectives::nccl {
namespace {

std::unique_ptr<StreamBackend> make_backend(const towline_collective_open_args& args,
                                            cuda::KernelDevice& device) {
  return std::make_unique<NcclBackend>(args, device);
}
void complete(towline_collective_table_v1_t&) {}

using Tables = DeviceTables<make_backend, complete>;

}  // namespace

const towline_collective_table_v1_t& nvidia_table() { return Tables::nvidia(); }
const towline_collective_table_v1_t& table_over(cuda::KernelDevice& (*device)()) {
  return Tables::over(device);
}

}  // namespace towline::collectives::nccl
