// The carrier of this transport's messages: an instance of the shm transport.
#pragma once

#include "transports/carrier/carrier.h"

namespace towline::cuda {

using carrier::Carrier;
using carrier::CarrierEvents;
using carrier::CarrierOwner;

carrier::CarrierOptions shm_carrier() noexcept;

}  // namespace towline::cuda
