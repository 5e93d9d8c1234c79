// Host memory that devices can be given, as a dma-buf of the kernel's.
#pragma once

#include <cstdint>

#include "base/os/unique_fd.h"

namespace towline {

// Makes a dma-buf of a whole memfd that is sealed against shrinking, as create_memfd() makes them, by /dev/udmabuf.
// Throws Error that says what is missing.
[[nodiscard]] UniqueFd make_dma_buf(int memfd, uint64_t bytes);

}  // namespace towline
