// GPUs made of host memory, for tests of everything above the device: two of them, whose memory is any memory
// of this process that is registered as vram. Memory on a memfd can be shared by descriptor, other memory
// only within the process. Each lane is a thread that runs launches one after the other, by the same address
// computation as the kernels.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <vector>

#include "transports/cuda/device.h"

namespace towline::cuda::fake {

// What tests have GPUs do. One for the process.
class Faults {
 public:
  // Launches wait until let go.
  void hold(bool held);
  void wait_until_let_go();
  // The next launches or copies are refused with this code.
  void refuse_launches(uint32_t count, Code code);
  Code take_refusal();
  // The next launches moves nothing and breaks its lane with this code.
  void break_next(Code code);
  Code take_break();
  // Memory from here on for `bytes` is gone, or lies on another GPU.
  void forget(uint64_t address, uint64_t bytes);
  void place(uint64_t address, uint64_t bytes, uint32_t gpu);
  [[nodiscard]] bool forgotten(uint64_t address);
  [[nodiscard]] uint32_t gpu_of(uint64_t address);
  void separate(bool separated);  // GPUs have no path to one another
  [[nodiscard]] bool separated();
  void reset();

 private:
  struct Range {
    uint64_t begin;
    uint64_t end;
    uint32_t gpu;
  };
  std::mutex mutex_;
  std::condition_variable let_go_;
  bool held_ = false;
  bool separated_ = false;
  uint32_t refusals_ = 0;
  Code refusal_ = 0;
  Code break_ = 0;
  std::vector<Range> forgotten_;
  std::vector<Range> placed_;
};

Faults& faults();
Device& fake_device();

}  // namespace towline::cuda::fake
