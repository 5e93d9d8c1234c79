#include "transports/rdma/carrier.h"

#include "transports/tcp/plugin.h"

namespace towline::rdma {

carrier::CarrierOptions tcp_carrier(const Flavour& flavour) noexcept {
  return {.plugin = towline_tcp_plugin(),
          .owner = flavour.name,
          .mark = flavour.mark,
          .setting = flavour.carrier_setting};
}

}  // namespace towline::rdma
