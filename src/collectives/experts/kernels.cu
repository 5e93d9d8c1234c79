// The kernels of dispatch and combine.
#include "collectives/experts/kernels.h"

#define TOWLINE_EXPERT_KERNEL(name, kernel)                                                    \
  extern "C" __global__ void __launch_bounds__(towline::collectives::experts::kThreads, 2)     \
      towline_experts_##name(const __grid_constant__ towline::collectives::experts::Job job) { \
    using namespace towline::collectives::experts;                                             \
    __shared__ Scratch scratch;                                                                \
    run_kernel<Kernel::kernel>(job, scratch, blockIdx.x, gridDim.x);                           \
  }
TOWLINE_EXPERT_KERNELS(TOWLINE_EXPERT_KERNEL)
