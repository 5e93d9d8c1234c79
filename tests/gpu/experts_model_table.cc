#include "collectives/experts/table.h"
#include "gpu/experts_suite.h"
#include "gpu/fake/fake_kernels.h"

namespace towline::gpu_test::experts {

const towline_experts_table_v1& table() {
  return collectives::experts::table_over(cuda::fake::fake_kernel_device);
}

}  // namespace towline::gpu_test::experts
