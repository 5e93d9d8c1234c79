// GPU memory of this process as NICs take it.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/os/pci.h"
#include "base/os/unique_fd.h"
#include "towline/plugin/backend.hpp"

namespace towline::rdma {

// A region's memory as a dma-buf, open until it is registered.
struct GpuMemory {
  UniqueFd dma_buf;
  uint64_t offset = 0;  // of the region in it
  std::string gpu;      // its PCI address; empty: not known
};

// By the agent's backend that copies GPU memory. Throws core::Error that says what GPU, driver or kernel lack.
[[nodiscard]] GpuMemory export_gpu_memory(const plugin::Host& host, const towline_region_ref& region);

// The rails that are nearest to the GPU, a bit each; all, where its place is not known.
[[nodiscard]] uint32_t rails_of_gpu(std::span<const PciPlace> rails, const std::string& gpu);

}  // namespace towline::rdma
