// The fixture of tests on real GPUs.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "gpu/target.h"
#include "towline/towline.hpp"

namespace towline::gpu_test {

using namespace std::chrono_literals;

inline constexpr uint64_t kBytes = uint64_t{32} << 20;

inline AgentOptions over_cuda(const std::string& more = "") {
  return {.listen = "none", .backends = "cuda", .config = "plugins = [\"" TOWLINE_CUDA_PLUGIN "\"]\n" + more};
}

inline Status run(const Transfer& transfer) {
  const Status posted = transfer.post();
  return posted == Status::kInProgress ? transfer.wait(60s) : posted;
}

class Gpu : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    cuda_ = Cuda::get(why);
    if (cuda_ == nullptr) GTEST_SKIP() << "no GPU: " << why;
    other_ = cuda_->gpus() - 1;
  }
  [[nodiscard]] static MemoryView view(const GpuMemory& memory) {
    return {
        .address = memory.pointer(), .bytes = memory.bytes(), .kind = Kind::kVram, .device = memory.gpu()};
  }
  [[nodiscard]] static Blocks at(uint64_t address, uint64_t length, uint32_t gpu) {
    return Blocks::at(address, length, Kind::kVram, gpu);
  }

  [[nodiscard]] std::string move_pages(const AgentOptions& options, Sort sort) const;

  Cuda* cuda_ = nullptr;
  uint32_t other_ = 0;
};

}  // namespace towline::gpu_test
