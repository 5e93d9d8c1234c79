// The tests of collectives over a GPU made of host memory, with its kernels' models.
#include <cstdlib>
#include <cstring>

#include "collectives/gpu/gpu_table.h"
#include "gpu/collectives_suite.h"
#include "gpu/fake/fake_device.h"
#include "gpu/fake/fake_kernels.h"

namespace towline::gpu_test {
namespace {

using cuda::fake::FakeStream;

class FakePlatform final : public Platform {
 public:
  FakePlatform() {
    EXPECT_EQ(towline_collective_backend_register(
                  "gpu_model", &collectives::gpu::table_over(cuda::fake::fake_kernel_device)),
              TOWLINE_OK);
  }
  [[nodiscard]] const char* backend() const override { return "gpu_model"; }
  void* allocate(uint64_t bytes) override { return std::aligned_alloc(64, (bytes + 63) / 64 * 64); }
  void release(void* memory) override { std::free(memory); }
  void put(void* to, const void* from, uint64_t bytes) override {
    if (bytes != 0) std::memcpy(to, from, bytes);
  }
  void get(void* to, const void* from, uint64_t bytes) override {
    if (bytes != 0) std::memcpy(to, from, bytes);
  }
  void* make_stream() override { return new FakeStream(0); }
  void drain(void* stream) override { static_cast<FakeStream*>(stream)->drain(); }
  void free_stream(void* stream) override { delete static_cast<FakeStream*>(stream); }
  void record(void* stream) override { static_cast<FakeStream*>(stream)->record(); }
  void* end_record(void* stream) override { return static_cast<FakeStream*>(stream)->end_record(); }
  void replay(void* graph, void* stream) override {
    static_cast<FakeStream*>(stream)->replay(*static_cast<FakeStream::Graph*>(graph));
  }
  void free_graph(void* graph) override { delete static_cast<FakeStream::Graph*>(graph); }
};

}  // namespace

Platform* platform(std::string&) {
  static FakePlatform of_process;
  return &of_process;
}

}  // namespace towline::gpu_test
