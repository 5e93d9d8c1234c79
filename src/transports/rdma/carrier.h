// The carrier of this transport's messages: an instance of the tcp transport. It listens where the agent does, on
// another port, unless rdma.listen says where.
#pragma once

#include "transports/carrier/carrier.h"

namespace towline::rdma {

carrier::CarrierOptions tcp_carrier() noexcept;

}  // namespace towline::rdma
