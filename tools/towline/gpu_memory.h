// GPU memory, using only the driver, which is loaded at run time: the tool does not need CUDA.
#pragma once

#include <cstdint>

namespace tool {

class GpuMemory {
 public:
  // Allocates on GPU `which` modulo the number of GPUs; a negative number counts from the last one (-1).
  // Throws Failure that says what is missing.
  GpuMemory(int which, uint64_t bytes);
  GpuMemory(const GpuMemory&) = delete;
  GpuMemory& operator=(const GpuMemory&) = delete;
  ~GpuMemory();

  [[nodiscard]] uint64_t address() const { return address_; }
  [[nodiscard]] uint32_t device() const { return device_; }
  void put(uint64_t offset, const void* from, uint64_t bytes);
  void get(uint64_t offset, void* to, uint64_t bytes) const;

 private:
  uint64_t address_ = 0;
  uint32_t device_ = 0;
  void* context_ = nullptr;
};

}  // namespace tool
