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
                                    argument, settings_.least_bytes, settings_.keep_fragments, &totals_,
                                    &bound_);
}

std::string SourceFlows::how() const {
  std::string how = std::string("payload by ") + ladder_.provider->name();
  if (bound_.regions() != 0) how += ", GPU memory sent as it lies";
  return how;
}

int32_t Backend::add(const towline_region_args& args, towline_registration** registration, void* token,
                     size_t* token_bytes) {
  const int32_t status = tcp::Backend::add(args, registration, token, token_bytes);
  if (status != TOWLINE_OK || args.region.kind != TOWLINE_MEMORY_VRAM) return status;
  if (BoundMemory::Bound* const bound = source_flows.bound().add(args.region))
    *registration = reinterpret_cast<towline_registration*>(bound);
  return TOWLINE_OK;
}

void Backend::remove(towline_registration* registration) noexcept {
  if (reinterpret_cast<tcp::Backend*>(registration) == this) return tcp::Backend::remove(registration);
  source_flows.bound().remove(reinterpret_cast<BoundMemory::Bound*>(registration));
}

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
                           {"held", totals.held.load()},
                           {"bound_regions", source_flows.bound().regions()},
                           {"why_not_bound", source_flows.bound().why_not()},
                           {"bound_bytes", totals.bound_bytes.load()},
                           {"bound_copied", totals.bound_copied.load()},
                           {"sent_bytes", totals.sent_bytes.load()}};
  for (const NeverMet& entry : kNeverMet)
    result["never_met"].push_back({{"part", entry.part}, {"what", entry.what}});
  for (const Rung& rung : source_flows.ladder().rungs)
    if (!rung.why_not.empty()) result["tried"].push_back({{"source", rung.name}, {"why_not", rung.why_not}});
  return result.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace towline::tcpx
