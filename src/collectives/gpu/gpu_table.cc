#include "collectives/gpu/gpu_table.h"

#include <memory>

#include "collectives/gpu/gpu_backend.h"
#include "collectives/gpu/image.h"
#include "collectives/gpu/operations.h"
#include "collectives/streams/stream_table.h"

namespace towline::collectives::gpu {
namespace {

template <class E>
void model(const void* argument, uint32_t block, uint32_t blocks) {
  Scratch scratch;
  if constexpr (std::is_same_v<E, NoElement>)
    run_moving(*static_cast<const Job*>(argument), scratch, block, blocks);
  else
    run_reducing<E>(*static_cast<const Job*>(argument), scratch, block, blocks);
}

template <class E>
void small_model(const void* argument, uint32_t block, uint32_t blocks) {
  run_small<E>(*static_cast<const Job*>(argument), block, blocks);
}

#define TOWLINE_KERNEL_NAME(name, datatype, element) "towline_collective_" #name,
#define TOWLINE_KERNEL_MODEL(name, datatype, element) model<element>,
#define TOWLINE_SMALL_NAME(name, datatype, element) "towline_collective_small_" #name,
#define TOWLINE_SMALL_MODEL(name, datatype, element) small_model<element>,
constexpr const char* kNames[] = {
    TOWLINE_COLLECTIVE_KERNELS(TOWLINE_KERNEL_NAME) "towline_collective_moving",
    TOWLINE_COLLECTIVE_KERNELS(TOWLINE_SMALL_NAME) "towline_collective_small_moving"};
constexpr cuda::KernelModel kModels[] = {TOWLINE_COLLECTIVE_KERNELS(TOWLINE_KERNEL_MODEL) model<NoElement>,
                                         TOWLINE_COLLECTIVE_KERNELS(TOWLINE_SMALL_MODEL)
                                             small_model<NoElement>};
static_assert(std::size(kNames) == kKernels && std::size(kModels) == kKernels);

cuda::KernelDevice& (*device_of_table)() = nullptr;

int32_t open_over(const towline_collective_open_args* args, towline_collective_backend** backend,
                  cuda::KernelDevice& (*device)()) {
  return guarded(args->host, [&] {
    const cuda::KernelSet kernels{kernel_image(), kNames, kModels, sizeof(Job), kThreads};
    *backend = hand_out(*args, std::make_unique<GpuBackend>(*args, device(), kernels));
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

}  // namespace towline::collectives::gpu
