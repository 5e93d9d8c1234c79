#include "transports/cuda/carrier.h"

#include "transports/shm/plugin.h"

namespace towline::cuda {

carrier::CarrierOptions shm_carrier() noexcept {
  return {.plugin = towline_shm_plugin(), .owner = "cuda", .mark = 0x63756461, .setting = nullptr};
}

}  // namespace towline::cuda
