// The carrier of this transport's messages: an instance of the tcp transport. It listens where the agent does, on
// another port, unless the setting `listen` of the backend says where.
#pragma once

#include "transports/carrier/carrier.h"
#include "transports/rdma/flavour.h"

namespace towline::rdma {

carrier::CarrierOptions tcp_carrier(const Flavour& flavour) noexcept;

}  // namespace towline::rdma
