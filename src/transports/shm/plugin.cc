#include "transports/shm/plugin.h"

#include <cstdio>
#include <exception>

#include "base/clock.h"
#include "base/os/memfd.h"
#include "towline/plugin/backend.hpp"
#include "towline/towline.h"
#include "transports/shm/backend.h"

namespace {

using namespace towline::plugin;  // NOLINT: short names for the list

constexpr towline_move_v1 kMoves[] = {
    move(kReadAndWrite, kinds(TOWLINE_MEMORY_DRAM), kinds(TOWLINE_MEMORY_DRAM), TOWLINE_WHERE_SAME_HOST)};

int32_t usable(char* reason, size_t capacity) {
  try {
    (void)towline::create_memfd("towline-probe", 4096);
    (void)towline::shm::make_socket();
    return TOWLINE_OK;
  } catch (const std::exception& error) {
    std::snprintf(reason, capacity, "%s", error.what());
    return TOWLINE_UNSUPPORTED;
  }
}

}  // namespace

const towline_plugin_v1_t* towline_shm_plugin() {
  static const towline_plugin_v1_t plugin = towline::plugin::describe<towline::shm::Backend>(
      {
          .name = "shm",
          .version = "0.1.0",
          .text = "Processes of one host: mapped memory, process_vm or a shared ring, whatever works for a "
                  "region",
          .traits = TOWLINE_TRAIT_ONE_SIDED | TOWLINE_TRAIT_OWNER_CHECKED | TOWLINE_TRAIT_TELLS_GRANTS,
          .moves = kMoves,
          .cost = 20,
          .worst_fence_ns = 10 * towline::kMillisecondNs,
          .fence_reason = "one slice of a copy (4 MiB) at most, or the end of the connection for the ring",
      },
      usable);
  return &plugin;
}
