#include "collectives/nccl/nccl_table.h"

#include "collectives/nccl/nccl_backend.h"
#include "collectives/streams/stream_table.h"

namespace towline::collectives::nccl {
namespace {

cuda::KernelDevice& (*device_of_table)() = nullptr;

int32_t open_over(const towline_collective_open_args* args, towline_collective_backend** backend,
                  cuda::KernelDevice& (*device)()) {
  return guarded(args->host, [&] {
    *backend = hand_out(*args, std::make_unique<NcclBackend>(*args, device()));
    return Status::kOk;
  });
}
int32_t open_nvidia(const towline_collective_open_args* args, towline_collective_backend** backend) {
  return open_over(args, backend, cuda::nvidia_kernel_device);
}
int32_t open_other(const towline_collective_open_args* args, towline_collective_backend** backend) {
  return open_over(args, backend, device_of_table);
}

}  // namespace

const towline_collective_table_v1_t& nvidia_table() {
  static const towline_collective_table_v1_t table = make_stream_table(open_nvidia);
  return table;
}

const towline_collective_table_v1_t& table_over(cuda::KernelDevice& (*device)()) {
  device_of_table = device;
  static const towline_collective_table_v1_t table = make_stream_table(open_other);
  return table;
}

}  // namespace towline::collectives::nccl
