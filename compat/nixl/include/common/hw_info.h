// Source-compatible with NIXL's header of this name: the GPUs and network adapters on this host's PCI bus.
#pragma once

#include <nixl_types.h>

namespace nixl {

class TOWLINE_NIXL_API hwInfo {
 public:
  unsigned numNvidiaGpus = 0;
  unsigned numAmdGpus = 0;
  unsigned numIbDevices = 0;  // Mellanox
  unsigned numEfaDevices = 0;

  // Counted at the first call; all 0 where the bus can't be read.
  [[nodiscard]] static const hwInfo& instance();
  hwInfo(const hwInfo&) = delete;
  hwInfo& operator=(const hwInfo&) = delete;

 private:
  hwInfo();
};

}  // namespace nixl
