// Buffers of one size in one piece of registered host memory, on the NUMA node of the engine's rails, taken and given back
// without registering anything. Any thread.
#pragma once

#include <mutex>
#include <vector>

#include "base/os/memfd.h"
#include "fabric/transfer_engine.h"

namespace towline::fabric {

struct BufferPoolOptions {
  uint64_t buffer_bytes = 0;  // rounded up to whole cache lines
  uint32_t buffers = 0;
  bool remote_read = false;
  bool remote_write = true;  // so that sends can be received into them
};

class BufferPool {
 public:
  // The engine outlives the pool. Throws Error.
  BufferPool(TransferEngine& engine, const BufferPoolOptions& options);
  // Throws nothing: if a transfer that is not fenced uses a buffer, the memory stays until the engine goes.
  ~BufferPool();
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;

  struct Buffer {
    uint32_t index = 0;
    void* address = nullptr;
    uint64_t offset = 0;  // in memory()
    explicit operator bool() const noexcept { return address != nullptr; }
  };
  Buffer take() noexcept;  // none: all are taken
  // Throws Error unless it was taken.
  void give_back(uint32_t index);

  const LocalMemory& memory() const noexcept { return *memory_; }
  uint64_t buffer_bytes() const noexcept { return stride_; }
  uint32_t available() const noexcept;

 private:
  TransferEngine& engine_;
  uint64_t stride_ = 0;
  Mapping arena_;
  const LocalMemory* memory_ = nullptr;
  mutable std::mutex mutex_;
  std::vector<uint32_t> free_;
  std::vector<bool> taken_;
};

}  // namespace towline::fabric
