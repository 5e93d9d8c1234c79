// The plugin: the backend's tables.
#include "transports/nixl/backend.h"

namespace {

using namespace towline::plugin;  // NOLINT: short names for the list

constexpr towline_move_v1 kMoves[] = {move(kReadAndWrite, kinds(TOWLINE_MEMORY_DRAM, TOWLINE_MEMORY_VRAM),
                                           kinds(TOWLINE_MEMORY_DRAM, TOWLINE_MEMORY_VRAM),
                                           TOWLINE_WHERE_ANY_HOST)};

}  // namespace

extern "C" TOWLINE_API const towline_plugin_v1_t* towline_plugin_v1(uint32_t number) {
  static const towline_plugin_v1_t plugin = describe<towline::nixl_net::Backend>(
      {
          .name = towline::nixl_net::kName,
          .version = "0.1.0",
          .text = "Other agents' memory by the engine of a plugin of NIXL's interface",
          .traits = TOWLINE_TRAIT_ONE_SIDED | TOWLINE_TRAIT_TELLS_GRANTS,
          .moves = kMoves,
          .cost = 70,
          .worst_fence_ns = UINT64_MAX,
          .fence_reason =
              "the plugin's engine reported that all of the request succeeded; it has no fence of its own",
      },
      [](char*, size_t) -> int32_t { return TOWLINE_OK; });
  return number == 0 ? &plugin : nullptr;
}
