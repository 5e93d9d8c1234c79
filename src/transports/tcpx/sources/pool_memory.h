// Memory that a NIC can fill and this process reads: host memory as a dma-buf.
#pragma once

#include <cstdint>
#include <functional>

#include "base/os/memfd.h"
#include "base/os/unique_fd.h"

namespace towline::tcpx {

struct PoolMemory {
  Mapping mapping;
  UniqueFd dma_buf;
};

// Throws Error that says what is missing.
[[nodiscard]] PoolMemory make_pool_memory(uint64_t bytes);

using MakePoolMemory = std::function<PoolMemory(uint64_t bytes)>;

}  // namespace towline::tcpx
