// The carrier of this transport's messages: an instance of the shm transport.
#pragma once

#include "transports/carrier/carrier.h"

namespace towline::cuda {

using carrier::Carrier;
using carrier::CarrierEvents;
using carrier::CarrierOwner;

// Throws plugin::Failure when this Towline has none.
inline carrier::CarrierOptions shm_carrier(const plugin::Host& host) {
  const towline_plugin_v1_t* const shm = host.builtin("shm");
  if (shm == nullptr)
    throw plugin::Failure(Status::kUnsupported,
                          "cuda: this Towline has no shm transport to carry its messages");
  return {.plugin = shm, .owner = "cuda", .mark = 0x63756461, .setting = nullptr};
}

}  // namespace towline::cuda
