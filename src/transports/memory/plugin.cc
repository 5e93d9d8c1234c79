#include "transports/memory/plugin.h"

#include "base/clock.h"
#include "towline/plugin/backend.hpp"
#include "towline/towline.h"
#include "transports/memory/backend.h"

namespace {

using namespace towline::plugin;  // NOLINT: short names for the list

constexpr towline_move_v1 kMoves[] = {
    move(kReadAndWrite, kinds(TOWLINE_MEMORY_DRAM), kinds(TOWLINE_MEMORY_DRAM), TOWLINE_WHERE_SAME_PROCESS)};

}  // namespace

const towline_plugin_v1_t* towline_memory_plugin() {
  static const towline_plugin_v1_t plugin = towline::plugin::describe<towline::memory::Backend>(
      {
          .name = "memory",
          .version = "0.1.0",
          .text = "Agents of one process: copies from pointer to pointer",
          .traits = TOWLINE_TRAIT_ONE_SIDED | TOWLINE_TRAIT_OWNER_CHECKED,
          .moves = kMoves,
          .cost = 10,
          .worst_fence_ns = 10 * towline::kMillisecondNs,
          .fence_reason = "one slice of a copy (1 MiB) at most",
      },
      [](char*, size_t) -> int32_t { return TOWLINE_OK; });
  return &plugin;
}
