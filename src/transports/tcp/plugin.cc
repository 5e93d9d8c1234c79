#include "transports/tcp/plugin.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstdio>

#include "base/clock.h"
#include "base/error.h"
#include "base/os/unique_fd.h"
#include "towline/plugin/backend.hpp"
#include "towline/towline.h"
#include "transports/tcp/backend.h"

namespace {

using namespace towline::plugin;  // NOLINT: short names for the list

constexpr towline_move_v1 kMoves[] = {move(kReadAndWrite, kinds(TOWLINE_MEMORY_DRAM, TOWLINE_MEMORY_VRAM),
                                           kinds(TOWLINE_MEMORY_DRAM, TOWLINE_MEMORY_VRAM),
                                           TOWLINE_WHERE_ANY_HOST)};

int32_t usable(char* reason, size_t capacity) {
  for (const int family : {AF_INET, AF_INET6, AF_UNIX}) {
    if (towline::UniqueFd(socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0)).valid()) return TOWLINE_OK;
  }
  const int error = errno;
  std::snprintf(reason, capacity, "no stream socket can be opened: %s", towline::errno_text(error).c_str());
  return static_cast<int32_t>(towline::status_from_errno(error));
}

}  // namespace

const towline_plugin_v1_t* towline_tcp_plugin() {
  static const towline_plugin_v1_t plugin = towline::plugin::describe<towline::tcp::Backend>(
      {.name = "tcp",
       .version = "0.1.0",
       .text = "framed transfers over TCP and Unix stream sockets, to any host",
       .traits = TOWLINE_TRAIT_OWNER_CHECKED | TOWLINE_TRAIT_LANDS,
       .moves = kMoves,
       .cost = 100,
       .worst_fence_ns = 20 * towline::kSecondNs,
       .fence_reason = "acknowledgement, or the end of the connection within tuning.tcp.user_timeout"},
      usable);
  return &plugin;
}
