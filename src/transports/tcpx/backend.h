// One agent's tcpx: tcp's backend, whose lanes have a second socket for payload.
#pragma once

#include <memory>
#include <string>

#include "transports/tcp/backend.h"
#include "transports/tcpx/bound_memory.h"
#include "transports/tcpx/ladder.h"
#include "transports/tcpx/payload_socket.h"
#include "transports/tcpx/settings.h"

namespace towline::tcpx {

class SourceFlows final : public tcp::Flows {
 public:
  explicit SourceFlows(const plugin::Host& host)
      : host_(host),
        settings_(Settings::read(host_)),
        ladder_(climb(settings_, host_)),
        bound_(this_kernel(), host_, settings_.send, settings_.nic.interface) {}

  std::unique_ptr<framing::Lane> make_lane(const plugin::Host& host, uint32_t worker, Stream stream,
                                           bool first, uint32_t frame_bytes, const std::string& congestion,
                                           towline_ready_fn ready, void* argument) override;
  [[nodiscard]] std::string how() const override;
  [[nodiscard]] std::vector<SocketAddress> addresses() const override;
  void attach(framing::Lane& lane, Stream payload) override;
  [[nodiscard]] const FlowTotals& totals() const noexcept { return totals_; }
  [[nodiscard]] const Ladder& ladder() const noexcept { return ladder_; }
  [[nodiscard]] BoundMemory& bound() noexcept { return bound_; }
  [[nodiscard]] const NicChoice& nic() const noexcept { return settings_.nic; }

 private:
  const plugin::Host host_;
  const Settings settings_;
  const Ladder ladder_;
  FlowTotals totals_;
  BoundMemory bound_;
};

// Made before the base that uses it.
struct HoldsFlows {
  explicit HoldsFlows(const plugin::Host& host) : source_flows(host) {}
  SourceFlows source_flows;
};

class Backend : private HoldsFlows, public tcp::Backend {
 public:
  explicit Backend(const plugin::Host& host) : HoldsFlows(host), tcp::Backend(host, "tcpx", &source_flows) {}

  // As tcp's; GPU memory is bound to the NIC where that can be had.
  int32_t add(const towline_region_args& args, towline_registration** registration, void* token,
              size_t* token_bytes);
  void remove(towline_registration* registration) noexcept;

  // JSON: which source is used, why not the others, and totals over all flows.
  std::string describe();
};

}  // namespace towline::tcpx
