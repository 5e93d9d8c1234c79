// Views of memory for code on a GPU (prepMemView), of Towline's own backends: where the GPU finds each entry.
//
// The addresses come from transfers that are never posted: the backend "cuda" maps what a transfer reaches, and keeps
// it mapped as long as the transfer lives. The entries lie in a table of host memory that the GPU reads; a handle is
// the GPU's address of that table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <nixl.h>
#include <towline_nixl_view.h>
#include <towline/towline.hpp>
#include "remotes.h"

class nixlAgentData;

namespace towline::nixl {

class GpuView {
 public:
  struct Entry {
    nixlBasicDesc desc;
    std::string agent;  // nixl_null_agent: none
  };

  // Waits for connections until the agent's deadline. NIXL_ERR_NOT_SUPPORTED, with the reason as the last error: a GPU of
  // this process has no address of the memory. Throws Error.
  static nixl_status_t make(nixlAgentData& data, nixl_mem_t type, const std::vector<Entry>& entries,
                            std::unique_ptr<GpuView>& view);
  GpuView(const GpuView&) = delete;
  GpuView& operator=(const GpuView&) = delete;
  ~GpuView();

  // What code on the GPU is given.
  [[nodiscard]] nixlMemViewH handle() const noexcept { return handle_; }

 private:
  GpuView(nixlAgentData& data, size_t entries);
  nixl_status_t fill(nixl_mem_t type, const std::vector<Entry>& entries);
  nixl_status_t find_table();
  // Where the GPU finds each of `near`, of this agent, and each of `far`: their first bytes.
  struct Addresses {
    std::vector<uint64_t> near;
    std::vector<uint64_t> far;
  };
  nixl_status_t reach(const std::vector<towline_blocks_t>& near, const std::string& agent, nixl_mem_t type,
                      const std::vector<nixlBasicDesc>& far, Addresses& addresses);
  nixl_status_t wait_for_view(towline_transfer_t* transfer, const std::string& agent, Addresses& addresses);
  [[nodiscard]] towline_blocks_t table_byte() const noexcept;

  nixlAgentData& data_;
  const size_t table_bytes_;
  void* const table_;
  std::optional<Region> table_region_;
  // Memory of this agent's on the GPU that the view is for; empty: it has registered none.
  const std::optional<nixlBasicDesc> on_gpu_;
  std::vector<towline_transfer_t*> transfers_;
  nixlMemViewH handle_ = nullptr;
};

}  // namespace towline::nixl
