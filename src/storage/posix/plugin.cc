#include "storage/posix/plugin.h"

#include "base/clock.h"
#include "storage/posix/backend.h"
#include "towline/plugin/backend.hpp"
#include "towline/towline.h"

namespace {

using namespace towline::plugin;  // NOLINT: short names for the list

constexpr towline_move_v1 kMoves[] = {move(kReadAndWrite, kinds(TOWLINE_MEMORY_DRAM),
                                           kinds(TOWLINE_MEMORY_FILE, TOWLINE_MEMORY_BLOCK),
                                           TOWLINE_WHERE_SAME_PROCESS)};

}  // namespace

const towline_plugin_v1_t* towline_posix_plugin() {
  static const towline_plugin_v1_t plugin = towline::plugin::describe<towline::posix::Backend>(
      {
          .name = "posix",
          .version = "0.1.0",
          .text = "Files and block devices: io_uring, kernel AIO, threads, or plain calls, as each pays",
          .traits = TOWLINE_TRAIT_ONE_SIDED | TOWLINE_TRAIT_STORAGE,
          .moves = kMoves,
          .cost = 50,
          .worst_fence_ns = UINT64_MAX,
          .fence_reason = "the kernel finished what it had begun: no bound but the device's own",
      },
      [](char*, size_t) -> int32_t { return TOWLINE_OK; });
  return &plugin;
}
