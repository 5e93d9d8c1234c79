// Memory as libfabric registers it: the processor's, and a GPU's by its dma-buf.
#pragma once

#include <rdma/fabric.h>
#include <rdma/fi_domain.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "fabric/domain.h"

namespace towline::fabric {

// What libfabric has had since 1.20, and older headers have not. It takes what begins at base_addr + offset.
inline constexpr uint64_t kOfiDmaBuf = uint64_t{1} << 40;  // FI_MR_DMABUF
struct OfiDmaBuf {                                         // fi_mr_dmabuf
  int fd = -1;
  uint64_t offset = 0;
  std::size_t bytes = 0;
  void* base = nullptr;
};
struct OfiMemoryAttributes {
  fi_mr_attr known = {};
  uint64_t later[8] = {};  // members that newer libraries read
};

// Providers whose NICs move GPU memory themselves; others would have the processor copy it.
[[nodiscard]] bool ofi_moves_gpu_memory(const std::string& provider) noexcept;

// Throws Error that names the rail, and says what library, provider or device lack. `library`: the version of the one that
// is loaded.
[[nodiscard]] fid_mr* ofi_register(fid_domain& domain, const fi_info& info, uint32_t library,
                                   const MemoryToRegister& memory, const std::string& rail);

}  // namespace towline::fabric
