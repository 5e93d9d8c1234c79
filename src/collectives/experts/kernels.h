// The list of kernels: their numbers, and what each runs.
#pragma once

#include "collectives/experts/combine.h"

namespace towline::collectives::experts {

enum class Kernel : uint32_t {
  kDispatchSend = 0,
  kDispatchAwait = 1,
  kDispatchPack = 2,
  kCombineSend = 3,
  kCombineAwait = 4,
  kCombineReduce = 5,
  kBarrier = 6,
  kCommand = 7,
};

// X(name, kernel)
#define TOWLINE_EXPERT_KERNELS(X)   \
  X(dispatch_send, kDispatchSend)   \
  X(dispatch_await, kDispatchAwait) \
  X(dispatch_pack, kDispatchPack)   \
  X(combine_send, kCombineSend)     \
  X(combine_await, kCombineAwait)   \
  X(combine_reduce, kCombineReduce) \
  X(barrier, kBarrier)              \
  X(command, kCommand)

template <Kernel kernel>
TOWLINE_DEVICE void run_kernel(const Job& job, Scratch& scratch, uint32_t block, uint32_t blocks) {
  if constexpr (kernel == Kernel::kDispatchSend) run_dispatch_send(job, scratch, block, blocks);
  if constexpr (kernel == Kernel::kDispatchAwait) run_dispatch_await(job, scratch);
  if constexpr (kernel == Kernel::kDispatchPack) run_dispatch_pack(job, block, blocks);
  if constexpr (kernel == Kernel::kCombineSend) run_combine_send(job, scratch, block, blocks);
  if constexpr (kernel == Kernel::kCombineAwait) run_combine_await(job, scratch);
  if constexpr (kernel == Kernel::kCombineReduce) run_combine_reduce(job, scratch, block, blocks);
  if constexpr (kernel == Kernel::kBarrier) run_barrier(job);
  if constexpr (kernel == Kernel::kCommand) run_command(job);
}

}  // namespace towline::collectives::experts
