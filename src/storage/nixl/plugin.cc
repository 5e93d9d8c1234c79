// The plugin: the backend's tables.
#include "storage/nixl/nixl.h"
#include "storing/calls/backend.h"

namespace {

using namespace towline::plugin;  // NOLINT: short names for the list

constexpr towline_move_v1 kMoves[] = {
    move(kReadAndWrite, kinds(TOWLINE_MEMORY_DRAM), kinds(TOWLINE_MEMORY_FILE), TOWLINE_WHERE_SAME_PROCESS)};

}  // namespace

extern "C" TOWLINE_API const towline_plugin_v1_t* towline_plugin_v1(uint32_t number) {
  static const towline_plugin_v1_t plugin = describe<towline::calls::Backend<towline::nixl_files::Nixl>>(
      {
          .name = "nixl",
          .version = "0.1.0",
          .text = "Files by the engine of a plugin of NIXL's interface",
          .traits = TOWLINE_TRAIT_ONE_SIDED | TOWLINE_TRAIT_STORAGE,
          .moves = kMoves,
          .cost = 50,
          .worst_fence_ns = UINT64_MAX,
          .fence_reason = "the plugin's engine reported the request's end; it has no fence of its own",
      },
      [](char*, size_t) -> int32_t { return TOWLINE_OK; });
  return number == 0 ? &plugin : nullptr;
}
