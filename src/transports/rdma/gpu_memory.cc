#include "transports/rdma/gpu_memory.h"

#include <towline/plugin/landing.h>

#include "base/error.h"
#include "fabric/topology.h"

namespace towline::rdma {

GpuMemory export_gpu_memory(const plugin::Host& host, const towline_region_ref& region) {
  const towline_landing_table_v1* table = nullptr;
  towline_backend* owner = nullptr;
  if (host.landing(&table, &owner) != TOWLINE_OK)
    fail(Status::kUnsupported, "no open backend of this agent knows GPU memory (cuda does)");
  if (table->export_memory == nullptr)
    fail(Status::kUnsupported, "the backend that knows GPU memory is too old to export it for NICs");
  towline_landing_export memory = {};
  memory.dma_buf = -1;
  char reason[512] = "";
  const int32_t status = table->export_memory(owner, &region, &memory, reason, sizeof reason);
  if (status != TOWLINE_OK) fail(static_cast<Status>(status), "{}", reason);
  memory.gpu[sizeof memory.gpu - 1] = '\0';
  return {UniqueFd{memory.dma_buf}, memory.offset, memory.gpu};
}

uint32_t rails_of_gpu(std::span<const PciPlace> rails, const std::string& gpu) {
  for (const PciPlace& place : gpu.empty() ? std::vector<PciPlace>{} : read_gpus())
    if (place.address() == gpu) return fabric::nearest_rails(rails, place);
  return UINT32_MAX;
}

}  // namespace towline::rdma
