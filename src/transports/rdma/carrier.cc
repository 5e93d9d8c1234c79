#include "transports/rdma/carrier.h"

#include <string_view>

#include "transports/tcp/plugin.h"

namespace towline::rdma {
namespace {

// Two instances of tcp can't listen at one port. Faults are injected into transports, not into what carries them.
const char* setting(const plugin::Host& host, const char* key) {
  const towline_host_v1_t& table = *host.table();
  if (key == std::string_view{"tcp.listen"}) return table.config(table.context, "rdma.listen", "");
  if (key == std::string_view{"faults"}) return "";
  return nullptr;
}

}  // namespace

carrier::CarrierOptions tcp_carrier() noexcept {
  return {.plugin = towline_tcp_plugin(), .owner = "rdma", .mark = 0x72646d61, .setting = setting};
}

}  // namespace towline::rdma
