// The backend over NCCL, where GPUs are host memory and NCCL is the tests' own.
#include "collectives/nccl/nccl_table.h"
#include "gpu/fake/fake_kernels.h"
#include "gpu/fake_platform.h"

namespace towline::gpu_test {
namespace {

class NcclPlatform final : public FakePlatform {
 public:
  NcclPlatform() {
    EXPECT_EQ(towline_collective_backend_register(
                  "nccl_model", &collectives::nccl::table_over(cuda::fake::fake_kernel_device)),
              TOWLINE_OK);
  }
  [[nodiscard]] const char* backend() const override { return "nccl_model"; }
};

}  // namespace

Platform* platform(std::string&) {
  static NcclPlatform of_process;
  return &of_process;
}

}  // namespace towline::gpu_test
