// CUDA as these tests use it, through the driver alone: memory of either sort, and bytes in and out of it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gpu/driver_api.h"

namespace towline::gpu_test {

class Cuda {
 public:
  // Null, with the reason, where there is no GPU. One for the process.
  static Cuda* get(std::string& why_not);

  [[nodiscard]] uint32_t gpus() const noexcept { return static_cast<uint32_t>(contexts_.size()); }
  [[nodiscard]] const cuda::driver::Api& api() const noexcept { return api_; }
  // The context that is current for this thread; null: none.
  [[nodiscard]] cuda::driver::Context current() const;
  // Makes this GPU current, with its primary context.
  void use(uint32_t gpu);

 private:
  friend class GpuMemory;
  Cuda();

  cuda::driver::Api api_;
  std::vector<cuda::driver::Context> contexts_;  // made when used
};

// A stream of the application's, and what it records.
class Stream {
 public:
  Stream(Cuda& cuda, uint32_t gpu);
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream();

  [[nodiscard]] void* native() const noexcept { return stream_; }
  void fill(uint64_t address, unsigned word, uint64_t bytes);
  void copy(uint64_t to, uint64_t from, uint64_t bytes);
  void drain();
  void record();
  void end_record();
  void replay();  // and waits for its end

 private:
  Cuda& cuda_;
  const uint32_t gpu_;
  cuda::driver::Stream stream_ = nullptr;
  cuda::driver::Graph graph_ = nullptr;
  struct Executable* executable_ = nullptr;
};

// cudaMalloc; cuMemCreate with a POSIX handle; the same that no GPU has access to yet; cudaMallocAsync
enum class Sort { kPlain, kVmm, kVmmClosed, kPool };

class GpuMemory {
 public:
  GpuMemory(Cuda& cuda, uint32_t gpu, uint64_t bytes, Sort sort);
  GpuMemory(const GpuMemory&) = delete;
  GpuMemory& operator=(const GpuMemory&) = delete;
  ~GpuMemory();

  [[nodiscard]] uint64_t address() const noexcept { return address_; }
  [[nodiscard]] void* pointer() const noexcept { return reinterpret_cast<void*>(address_); }
  [[nodiscard]] uint64_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] uint32_t gpu() const noexcept { return gpu_; }
  void put(const std::vector<uint8_t>& bytes);
  [[nodiscard]] std::vector<uint8_t> get() const;

 private:
  Cuda& cuda_;
  const uint32_t gpu_;
  const uint64_t bytes_;
  const Sort sort_;
  uint64_t address_ = 0;
};

}  // namespace towline::gpu_test
