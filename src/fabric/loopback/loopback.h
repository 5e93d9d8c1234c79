// NICs and a network in this process, driven by a clock of the caller's: what simulations run on.
//
// All is decided by the seed: how long a request is under way, whether it is lost and sent again, arrives
// twice, overtakes others (only on domains that say that they are not ordered), or ends its connection. A
// connection that ends leaves requests in the network: some were carried out without the initiator knowing,
// some are carried out later as long as the other end is open, some never. Ports can be killed and revived.
//
// One thread. The network moves on whenever a domain is polled.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "fabric/domain.h"

namespace towline::fabric {

struct LoopbackFaults {
  uint64_t min_delay_ns = 500;  // one way
  uint64_t max_delay_ns = 2'000;
  double drop = 0;  // a request is sent again, late
  uint64_t again_after_ns = 100'000;
  double repeat = 0;             // arrives twice
  double cut = 0;                // ends its connection
  uint64_t notice_ns = 200'000;  // until an end learns that the other one is gone
};

// The kind defaults to "loopback".
struct LoopbackOptions {
  DomainTraits traits;
  uint64_t bytes_per_s = 0;  // 0: as fast as it is polled
  bool host_only = false;    // it takes no dma-buf
};

class LoopbackFabric {
 public:
  // now_ns gives the time that domains are polled at.
  LoopbackFabric(uint64_t seed, std::function<uint64_t()> now_ns);
  ~LoopbackFabric();

  // The fabric outlives its domains. Ports are numbered from 0 in the order of making.
  std::unique_ptr<Domain> make_domain(LoopbackOptions options);

  void set_faults(const LoopbackFaults& faults) noexcept;
  void set_rate(uint32_t port, uint64_t bytes_per_s) noexcept;
  void kill(uint32_t port);
  void revive(uint32_t port);

  // When something happens next; kNoDeadline when nothing is under way.
  uint64_t next_event_ns() const noexcept;

  // Sends that found no receive, and completions beyond a domain's depth: an engine must cause neither.
  uint64_t receive_overruns() const noexcept;
  uint64_t completion_overruns() const noexcept;
  // Requests that were carried out after their initiator had given them up.
  uint64_t late_arrivals() const noexcept;
  uint64_t cuts() const noexcept;

 private:
  class Network;
  class Port;
  std::unique_ptr<Network> network_;
};

}  // namespace towline::fabric
