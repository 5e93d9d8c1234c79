// The way of Google's kernels for GPUDirect-TCPX, from before it went into Linux: other numbers for the same messages,
// and a daemon that owns receive memory and flow rules and is asked over Unix sockets.
//
// The daemon's memory is a GPU's on such hosts: the backend that copies GPU memory imports it. Memory that a processor can
// map is mapped.
#pragma once

#include <memory>
#include <string>

#include "transports/tcpx/kernel/daemon_messages.h"
#include "transports/tcpx/sources/device_memory.h"
#include "transports/tcpx/sources/pool_memory.h"

namespace towline::tcpx {

struct DaemonOptions {
  std::string folder;  // of the daemon's sockets
  std::string gpu;     // its PCI address, as the daemon names it
};

class DevmemLegacyProvider final : public Provider {
 public:
  // `host`: whose GPUs may import the memory; null: none. Throws Error that says why not.
  DevmemLegacyProvider(const DaemonOptions& options, const plugin::Host* host);

  [[nodiscard]] const char* name() const noexcept override { return "devmem-legacy"; }
  [[nodiscard]] std::string where() const override { return memory_.where(); }
  std::unique_ptr<Source> make(int socket) override;

 private:
  class Steered;

  const DaemonOptions options_;
  const PoolMemory memory_;
  SharedPool pool_;
};

}  // namespace towline::tcpx
