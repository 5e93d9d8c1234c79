// Memory of the library's own, from NVIDIA's driver and never given back to it.
//
// To free pinned memory or memory of a GPU, the driver waits until no kernel runs there, and lets no thread of the process launch
// anything meanwhile (cuMemFreeHost, cuMemFree and cuMemHostUnregister; seen on an H100, driver 580: nothing else that is
// called here waits, unmapping shared memory least of all). A kernel that waits for another rank, or for bytes from
// another host, may need just such a launch, and then both wait until a deadline ends them. So what is let go is kept for the next who
// asks for as much: the process holds what it once needed at a time.
#pragma once

#include <cstdint>

#include "gpu/driver_api.h"

namespace towline::cuda {

// Pinned, at one address for the processors and another for GPUs. Any thread; its contents are whatever they were.
class OwnPinnedMemory {
 public:
  // Throws Error that begins with `what`. The context outlives the process's use of it.
  OwnPinnedMemory(const driver::Api& api, driver::Context context, uint64_t bytes, const char* what);
  OwnPinnedMemory(const OwnPinnedMemory&) = delete;
  OwnPinnedMemory& operator=(const OwnPinnedMemory&) = delete;
  ~OwnPinnedMemory();
  [[nodiscard]] void* host() const noexcept { return host_; }
  [[nodiscard]] driver::Pointer gpu() const noexcept { return gpu_; }

 private:
  const driver::Context context_;
  const uint64_t bytes_;  // a power of two
  void* host_ = nullptr;
  driver::Pointer gpu_ = 0;
};

class OwnGpuMemory {
 public:
  OwnGpuMemory(const driver::Api& api, driver::Context context, uint64_t bytes, const char* what);
  OwnGpuMemory(const OwnGpuMemory&) = delete;
  OwnGpuMemory& operator=(const OwnGpuMemory&) = delete;
  ~OwnGpuMemory();
  [[nodiscard]] driver::Pointer address() const noexcept { return address_; }

 private:
  const driver::Context context_;
  const uint64_t bytes_;
  driver::Pointer address_ = 0;
};

}  // namespace towline::cuda
