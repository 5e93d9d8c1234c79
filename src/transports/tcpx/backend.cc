#include "transports/tcpx/backend.h"

#include <nlohmann/json.hpp>

#include "transports/tcpx/flow_lane.h"
#include "transports/tcpx/met.h"

namespace towline::tcpx {

std::unique_ptr<framing::Lane> SourceFlows::make_lane(const plugin::Host& host, uint32_t worker,
                                                      Stream stream, bool first, uint32_t frame_bytes,
                                                      const std::string& congestion, towline_ready_fn ready,
                                                      void* argument) {
  return std::make_unique<FlowLane>(host, worker, std::move(stream), first, frame_bytes, congestion, ready,
                                    argument, settings_.least_bytes, settings_.keep_fragments, &totals_);
}

std::string SourceFlows::how() const { return std::string("payload by ") + ladder_.provider->name(); }

// A NIC's queues see only what comes in by its own addresses.
std::vector<SocketAddress> SourceFlows::addresses() const {
  return settings_.nic.interface.empty() ? std::vector<SocketAddress>{}
                                         : interface_addresses(settings_.nic.interface);
}

void SourceFlows::attach(framing::Lane& lane, Stream stream) {
  UniqueFd payload = std::move(stream).release();
  auto source = ladder_.provider->make(payload.get());
  static_cast<FlowLane&>(lane).attach(std::move(payload), std::move(source));
}

std::string Backend::describe() {
  const FlowTotals& totals = source_flows.totals();
  nlohmann::json result = {{"source", source_flows.ladder().provider->name()},
                           {"pool", source_flows.ladder().provider->where()},
                           {"tried", nlohmann::json::array()},
                           {"nic", source_flows.nic().interface},
                           {"why_nic", source_flows.nic().why},
                           {"fragments", totals.fragments.load()},
                           {"fragment_bytes", totals.fragment_bytes.load()},
                           {"linear_bytes", totals.linear_bytes.load()},
                           {"kept_bytes", totals.kept_bytes.load()},
                           {"copied_bytes", totals.copied_bytes.load()},
                           {"fetched_bytes", totals.fetched_bytes.load()},
                           {"dry", totals.dry.load()},
                           {"held", totals.held.load()}};
  for (const NeverMet& entry : kNeverMet)
    result["never_met"].push_back({{"part", entry.part}, {"what", entry.what}});
  for (const Rung& rung : source_flows.ladder().rungs)
    if (!rung.why_not.empty()) result["tried"].push_back({{"source", rung.name}, {"why_not", rung.why_not}});
  return result.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace towline::tcpx
