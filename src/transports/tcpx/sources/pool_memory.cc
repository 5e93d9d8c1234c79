#include "transports/tcpx/sources/pool_memory.h"

#include <cstring>

#include "base/os/dma_buf.h"

namespace towline::tcpx {

PoolMemory make_pool_memory(uint64_t bytes) {
  const UniqueFd memory = create_memfd("towline-tcpx-pool", bytes);
  // Pages that were only reserved are cleared when a processor first touches them, whatever a NIC wrote there before.
  Mapping mapping = Mapping::map_shared(memory.get(), bytes, MapAccess::kReadWrite);
  std::memset(mapping.address(), 0, bytes);
  UniqueFd dma_buf = make_dma_buf(memory.get(), bytes);
  return {std::move(mapping), std::move(dma_buf), nullptr};
}

MakePoolMemory make_gpu_memory(const plugin::Host& host, const std::string& gpu) {
  return [&host, gpu](uint64_t bytes) {
    return PoolMemory{{}, {}, std::make_unique<GpuPool>(host, GpuPoolWish{gpu, bytes, -1})};
  };
}

}  // namespace towline::tcpx
