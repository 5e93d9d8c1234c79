// Memory that a NIC can fill, as a dma-buf: of the host, which this process reads, or of a GPU.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/os/memfd.h"
#include "base/os/unique_fd.h"
#include "transports/tcpx/sources/gpu_pool.h"

namespace towline::tcpx {

struct PoolMemory {
  Mapping mapping;               // of the host
  UniqueFd own;                  // its dma-buf
  std::unique_ptr<GpuPool> gpu;  // in place of both

  [[nodiscard]] Pool pool() const noexcept {
    return gpu ? gpu->pool() : Pool{mapping.address(), mapping.bytes(), true, nullptr};
  }
  [[nodiscard]] int dma_buf() const noexcept { return gpu ? gpu->info().dma_buf : own.get(); }
  [[nodiscard]] std::string where() const { return gpu ? gpu->where() : "host memory"; }
};

using MakePoolMemory = std::function<PoolMemory(uint64_t bytes)>;

// Throw Error that says what is missing.
[[nodiscard]] PoolMemory make_pool_memory(uint64_t bytes);
// Memory of the GPU at this PCI address; if empty, of one that the process uses. `host` outlives the maker.
[[nodiscard]] MakePoolMemory make_gpu_memory(const plugin::Host& host, const std::string& gpu);

}  // namespace towline::tcpx
