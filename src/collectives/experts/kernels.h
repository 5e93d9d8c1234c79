// The list of kernels: their numbers, and what each runs.
#pragma once

#include "collectives/experts/batch_combine.h"
#include "collectives/experts/batch_dispatch.h"
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
  kBatchPut = 8,
  kBatchAwait = 9,
  kBatchList = 10,
  kBatchPull = 11,
  kBatchReturn = 12,
  kBatchSum = 13,
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
  X(command, kCommand)              \
  X(batch_put, kBatchPut)           \
  X(batch_await, kBatchAwait)       \
  X(batch_list, kBatchList)         \
  X(batch_pull, kBatchPull)         \
  X(batch_return, kBatchReturn)     \
  X(batch_sum, kBatchSum)

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
  if constexpr (kernel == Kernel::kBatchPut) run_batch_put(job, scratch, block, blocks);
  if constexpr (kernel == Kernel::kBatchAwait) run_batch_await(job, scratch);
  if constexpr (kernel == Kernel::kBatchList) run_batch_list(job, scratch, block, blocks);
  if constexpr (kernel == Kernel::kBatchPull) run_batch_pull(job, scratch, block, blocks);
  if constexpr (kernel == Kernel::kBatchReturn) run_batch_return(job, scratch, block, blocks);
  if constexpr (kernel == Kernel::kBatchSum) run_batch_sum(job, scratch, block, blocks);
}

}  // namespace towline::collectives::experts
