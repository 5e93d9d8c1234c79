#include "transports/tcpx/sources/devmem.h"

#include <optional>

#include "base/error.h"
#include "base/log.h"

namespace towline::tcpx {

void check_nic_options(const NicOptions& options) {
  if (options.interface.empty())
    fail(Status::kUnsupported, "tuning.tcpx.interface gives no NIC that receives into device memory{}{}",
         options.why.empty() ? "" : ": ", options.why);
  if (options.queues.empty())
    fail(Status::kUnsupported, "tuning.tcpx.queues names no receive queue of {} to take", options.interface);
}

// Its rule ends with it. Where no rule can be had, packets come by other queues, and their bytes are linear.
class DevmemProvider::Steered final : public DeviceMemorySource {
 public:
  Steered(int socket, SharedPool& pool, Steering& steering)
      : DeviceMemorySource(socket, kUpstream, pool, "devmem"), steering_(steering) {
    try {
      rule_ = steering_.steer(socket);
    } catch (const core::Error& error) {
      TOWLINE_LOG_EVERY(kWarning, 10'000'000'000, "tcpx: payload is copied by the processor: {}",
                        error.message());
    }
  }
  ~Steered() override {
    if (rule_) steering_.end(*rule_);
  }

 private:
  Steering& steering_;
  std::optional<FlowRule> rule_;
};

DevmemProvider::DevmemProvider(Kernel& kernel, const NicOptions& options, const MakePoolMemory& make_memory)
    : memory_(
          (check_nic_options(options), make_memory(options.pool_bytes / kPoolPageBytes * kPoolPageBytes))),
      nic_(kernel, options.interface),
      steering_(nic_, options.queues, options.state_folder),
      binding_(bind(options)) {
  pool_.pool = memory_.pool();
  pool_.number = binding_.number;
  pool_.pages = static_cast<uint32_t>(pool_.pool.bytes / kPoolPageBytes);
}

// A NIC that has no path to the GPU is found out here.
Binding DevmemProvider::bind(const NicOptions& options) {
  try {
    return nic_.bind_receive(options.queues, memory_.dma_buf());
  } catch (const core::Error& error) {
    if (!memory_.gpu) throw;
    fail(error.code(), "{} ({}; {}: {})", error.message(), memory_.where(), options.interface, options.why);
  }
}

std::unique_ptr<Source> DevmemProvider::make(int socket) {
  return std::make_unique<Steered>(socket, pool_, steering_);
}

}  // namespace towline::tcpx
