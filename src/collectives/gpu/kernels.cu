// The kernels of collectives: one for each datatype that reduces, and one that moves; small ones of each; norms; those
// in lines; small sums of floats; and norms of a few rows.
#include "collectives/gpu/operations.h"

namespace towline::collectives::gpu {
namespace {
__device__ __forceinline__ Scratch& scratch() {
  __shared__ Scratch of_block;
  return of_block;
}
}  // namespace
}  // namespace towline::collectives::gpu

// Of at most kThreads threads; `blocks`: so many must fit on a multiprocessor. The rest is its body.
#define TOWLINE_KERNEL(symbol, blocks, ...)                                                 \
  extern "C" __global__ void __launch_bounds__(towline::collectives::gpu::kThreads, blocks) \
      symbol(const __grid_constant__ towline::collectives::gpu::Job job) {                  \
    using namespace towline::collectives;                                                   \
    using namespace towline::collectives::gpu;                                              \
    __VA_ARGS__;                                                                            \
  }

#define TOWLINE_REDUCING_KERNEL(name, datatype, element)                                                     \
  TOWLINE_KERNEL(towline_collective_##name, 2, run_reducing<element>(job, scratch(), blockIdx.x, gridDim.x)) \
  TOWLINE_KERNEL(towline_collective_small_##name, 1, run_small<element>(job, blockIdx.x, gridDim.x))
TOWLINE_COLLECTIVE_KERNELS(TOWLINE_REDUCING_KERNEL)

TOWLINE_KERNEL(towline_collective_moving, 2, run_moving(job, scratch(), blockIdx.x, gridDim.x))
TOWLINE_KERNEL(towline_collective_small_moving, 1, run_small<NoElement>(job, blockIdx.x, gridDim.x))

#define TOWLINE_NORM_KERNEL(name, element) \
  TOWLINE_KERNEL(towline_collective_norm_##name, 2, run_norm<element>(job, scratch(), blockIdx.x, gridDim.x))
TOWLINE_FLOAT_KERNELS(TOWLINE_NORM_KERNEL)

#define TOWLINE_MARKED_NORM_KERNEL(name, element, ranks)             \
  TOWLINE_KERNEL(towline_collective_marked_norm_##name##_##ranks, 2, \
                 run_marked_norm<element, ranks>(job, scratch(), blockIdx.x, gridDim.x))
TOWLINE_RANKED_FLOAT_KERNELS(TOWLINE_MARKED_NORM_KERNEL)

#define TOWLINE_LINE_KERNEL(name, element, ranks)              \
  TOWLINE_KERNEL(towline_collective_lines_##name##_##ranks, 1, \
                 run_in_lines<element, ranks>(job, blockIdx.x, gridDim.x))
TOWLINE_LINE_KERNELS(TOWLINE_LINE_KERNEL)

#define TOWLINE_LINE_NORM_KERNEL(name, element, ranks)             \
  TOWLINE_KERNEL(towline_collective_line_norm_##name##_##ranks, 1, \
                 run_line_norm<element, ranks>(job, scratch(), blockIdx.x, gridDim.x))
TOWLINE_RANKED_FLOAT_KERNELS(TOWLINE_LINE_NORM_KERNEL)

#define TOWLINE_MARKED_SUM_KERNEL(name, element, ranks)             \
  TOWLINE_KERNEL(towline_collective_marked_sum_##name##_##ranks, 1, \
                 run_marked_sum<element, ranks>(job, blockIdx.x, gridDim.x))
TOWLINE_RANKED_FLOAT_KERNELS(TOWLINE_MARKED_SUM_KERNEL)

// In half a multiprocessor with any number of threads.
#define TOWLINE_MARKED_ROW_KERNEL(name, element, ranks)             \
  TOWLINE_KERNEL(towline_collective_marked_row_##name##_##ranks, 2, \
                 run_marked_rows<element, ranks>(job, scratch(), blockIdx.x, gridDim.x))
TOWLINE_RANKED_FLOAT_KERNELS(TOWLINE_MARKED_ROW_KERNEL)

#define TOWLINE_OWNED_KERNEL(name, element, ranks)             \
  TOWLINE_KERNEL(towline_collective_owned_##name##_##ranks, 2, \
                 run_owned<element, ranks>(job, scratch(), blockIdx.x, gridDim.x))
TOWLINE_OWNED_FLOAT_KERNELS(TOWLINE_OWNED_KERNEL)
