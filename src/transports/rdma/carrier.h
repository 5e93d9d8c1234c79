// The carrier of this transport's messages: an instance of the tcp transport. It listens where the agent does, on
// another port, unless the setting `listen` of the backend says where.
#pragma once

#include "transports/carrier/carrier.h"
#include "transports/rdma/flavour.h"

namespace towline::rdma {

// Throws plugin::Failure when this Towline has none.
inline carrier::CarrierOptions tcp_carrier(const plugin::Host& host, const Flavour& flavour) {
  const towline_plugin_v1_t* const tcp = host.builtin("tcp");
  if (tcp == nullptr)
    throw plugin::Failure(
        Status::kUnsupported,
        std::string(flavour.name) + ": this Towline has no tcp transport to carry its messages");
  return {.plugin = tcp, .owner = flavour.name, .mark = flavour.mark, .setting = flavour.carrier_setting};
}

}  // namespace towline::rdma
