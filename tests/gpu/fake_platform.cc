// The tests of collectives over a GPU made of host memory, with its kernels' models.
#include "gpu/fake_platform.h"

#include "collectives/gpu/gpu_table.h"
#include "collectives/gpu/memory_pool.h"
#include "gpu/fake/fake_kernels.h"

namespace towline::gpu_test {
namespace {

class ModelPlatform final : public FakePlatform {
 public:
  ModelPlatform() {
    EXPECT_EQ(towline_collective_backend_register(
                  "gpu_model", &collectives::gpu::table_over(cuda::fake::fake_kernel_device)),
              TOWLINE_OK);
  }
  void* pool_allocate(uint64_t bytes) override { return collectives::gpu::pool_allocate(device(), 0, bytes); }
  void pool_release(void* memory) override { collectives::gpu::pool_free(memory); }
  [[nodiscard]] const char* backend() const override { return "gpu_model"; }
};

}  // namespace

Platform* platform(std::string&) {
  static ModelPlatform of_process;
  return &of_process;
}

}  // namespace towline::gpu_test
