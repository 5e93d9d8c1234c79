#include "framing/exported_memory.h"

#include <towline/plugin/landing.h>

#include "base/error.h"

namespace towline::framing {

ExportedMemory export_gpu_memory(const plugin::Host& host, const towline_region_ref& region) {
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

}  // namespace towline::framing
