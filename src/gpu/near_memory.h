// Host memory that copies go through, near the GPU that makes them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "base/os/prefer_node.h"
#include "memory/shared_memory.h"

namespace towline::cuda {

// On that NUMA node where it is known. Throws Error.
inline std::unique_ptr<SharedMemory> allocate_near(std::optional<uint32_t> node, uint64_t bytes) {
  const PreferNode prefer(node);
  return SharedMemory::allocate(bytes, 0);
}

}  // namespace towline::cuda
