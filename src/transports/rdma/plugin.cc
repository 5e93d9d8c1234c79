#include "transports/rdma/plugin.h"

#include "base/clock.h"
#include "towline/plugin/backend.hpp"
#include "transports/rdma/backend.h"

namespace {

using namespace towline::plugin;  // NOLINT: short names for the list

constexpr towline_move_v1 kMoves[] = {move(kReadAndWrite, kinds(TOWLINE_DRAM, TOWLINE_VRAM),
                                           kinds(TOWLINE_DRAM, TOWLINE_VRAM), TOWLINE_WHERE_ANY_HOST)};

// Which rails there are depends on the settings: opening it tells.
int32_t usable(char*, size_t) { return TOWLINE_OK; }

}  // namespace

const towline_plugin_v1_t* towline_rdma_plugin() {
  static const towline_plugin_v1_t plugin = towline::plugin::describe<towline::rdma::Backend>(
      {.name = "rdma",
       .version = "0.1.0",
       .text = "RDMA over every rail of this host: verbs, libfabric",
       .traits = TOWLINE_TRAIT_ONE_SIDED | TOWLINE_TRAIT_TELLS_GRANTS,
       .moves = kMoves,
       .cost = 50,
       .worst_fence_ns = 10 * towline::kSecondNs,
       .fence_reason = "completions, or the end of the rails' connections at both sides"},
      usable);
  return &plugin;
}
