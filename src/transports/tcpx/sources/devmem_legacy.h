// The way of Google's kernels for GPUDirect-TCPX, from before it went into Linux: other numbers for the same messages,
// and a daemon that owns receive memory and flow rules and is asked over Unix sockets.
//
// The daemon's memory is a GPU's on such hosts. Memory of GPUs is not used yet, so there this says why not; it works
// where the memory can be mapped.
#pragma once

#include <memory>
#include <string>

#include "base/os/memfd.h"
#include "transports/tcpx/kernel/daemon_messages.h"
#include "transports/tcpx/sources/device_memory.h"

namespace towline::tcpx {

struct DaemonOptions {
  std::string folder;  // of the daemon's sockets
  std::string gpu;     // its PCI address, as the daemon names it
};

class DevmemLegacyProvider final : public Provider {
 public:
  // Throws Error that says why not.
  explicit DevmemLegacyProvider(const DaemonOptions& options);

  [[nodiscard]] const char* name() const noexcept override { return "devmem-legacy"; }
  std::unique_ptr<Source> make(int socket) override;

 private:
  class Steered;

  const DaemonOptions options_;
  Mapping memory_;
  SharedPool pool_;
};

}  // namespace towline::tcpx
