// GPUs made of host memory, as the tests of collectives use them.
#pragma once

#include <cstdlib>
#include <cstring>

#include "gpu/collectives_suite.h"
#include "gpu/fake/fake_device.h"
#include "gpu/fake/fake_kernels.h"

namespace towline::gpu_test {

class FakePlatform : public Platform {
 public:
  void enlarge(bool large) override { cuda::fake::faults().enlarge(large); }
  void* allocate(uint64_t bytes) override { return std::aligned_alloc(64, (bytes + 63) / 64 * 64); }
  void release(void* memory) override { std::free(memory); }
  void put(void* to, const void* from, uint64_t bytes) override {
    if (bytes != 0) std::memcpy(to, from, bytes);
  }
  void get(void* to, const void* from, uint64_t bytes) override {
    if (bytes != 0) std::memcpy(to, from, bytes);
  }
  void* make_stream() override { return new cuda::fake::FakeStream(0); }
  void drain(void* stream) override { static_cast<cuda::fake::FakeStream*>(stream)->drain(); }
  void free_stream(void* stream) override { delete static_cast<cuda::fake::FakeStream*>(stream); }
  void record(void* stream) override { static_cast<cuda::fake::FakeStream*>(stream)->record(); }
  void* end_record(void* stream) override {
    return static_cast<cuda::fake::FakeStream*>(stream)->end_record();
  }
  void replay(void* graph, void* stream) override {
    static_cast<cuda::fake::FakeStream*>(stream)->replay(*static_cast<cuda::fake::FakeStream::Graph*>(graph));
  }
  void* pool_allocate(uint64_t) override { return nullptr; }
  void pool_release(void*) override {}
  cuda::KernelDevice& device() override { return cuda::fake::fake_kernel_device(); }
  void free_graph(void* graph) override { delete static_cast<cuda::fake::FakeStream::Graph*>(graph); }
};

}  // namespace towline::gpu_test
