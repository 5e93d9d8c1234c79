// Linux's own way, from 6.12 on: memory is bound to receive queues by netlink, and flow rules send payload sockets there.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "transports/tcpx/kernel/nic.h"
#include "transports/tcpx/kernel/steering.h"
#include "transports/tcpx/sources/device_memory.h"
#include "transports/tcpx/sources/pool_memory.h"

namespace towline::tcpx {

struct NicOptions {
  std::string interface;
  std::vector<uint32_t> queues;
  uint64_t pool_bytes = 64u << 20;
  std::string state_folder;
  std::string why;  // this interface, or none
};

// Throws Error, naming the setting, unless a NIC and its queues are named.
void check_nic_options(const NicOptions& options);

class DevmemProvider final : public Provider {
 public:
  // Prepares the NIC. `kernel` outlives it. Throws Error that says why not; then the NIC is as it was.
  DevmemProvider(Kernel& kernel, const NicOptions& options, const MakePoolMemory& make_memory);

  [[nodiscard]] const char* name() const noexcept override { return "devmem"; }
  [[nodiscard]] std::string where() const override { return memory_.where(); }
  std::unique_ptr<Source> make(int socket) override;

  [[nodiscard]] const SharedPool& pool() const noexcept { return pool_; }
  [[nodiscard]] Nic& nic() noexcept { return nic_; }

 private:
  class Steered;

  [[nodiscard]] Binding bind(const NicOptions& options);

  PoolMemory memory_;
  Nic nic_;
  Steering steering_;
  Binding binding_;  // ends before steering: a NIC splits headers as long as memory is bound
  SharedPool pool_;
};

}  // namespace towline::tcpx
