// GPU memory of this process as NICs take it.
#pragma once

#include <cstdint>
#include <string>

#include "base/os/unique_fd.h"
#include "towline/plugin/backend.hpp"

namespace towline::framing {

// A region's memory as a dma-buf.
struct ExportedMemory {
  UniqueFd dma_buf;
  uint64_t offset = 0;  // of the region in it
  std::string gpu;      // its PCI address; empty: not known
};

// By the agent's backend that copies GPU memory. Throws core::Error that says what GPU, driver or kernel lack.
[[nodiscard]] ExportedMemory export_gpu_memory(const plugin::Host& host, const towline_region_ref& region);

}  // namespace towline::framing
