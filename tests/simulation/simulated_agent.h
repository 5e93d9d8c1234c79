// Shared by simulations of whole agents in one thread: the clock, and how their agents are set up.
#pragma once

#include <atomic>
#include <string>
#include <utility>

#include "agent/agent.h"
#include "base/clock.h"
#include "base/config/config.h"

namespace towline::testing {

// Deterministic: time passes by being looked at.
class SteppingClock final : public Clock {
 public:
  uint64_t now_ns() const noexcept override { return now_ns_.fetch_add(2000, std::memory_order_relaxed); }

 private:
  mutable std::atomic<uint64_t> now_ns_{kSecondNs};
};

// The default deadline of simulated transfers, and when an outcome is there at the latest: time passes by being looked
// at, so the pass that sees the deadline takes some of it.
inline constexpr uint64_t kTimeoutNs = 50 * kMillisecondNs;
inline constexpr uint64_t kHeartbeatNs = 20 * kMillisecondNs;
inline constexpr uint64_t kSuspectNs = 60 * kMillisecondNs;
inline constexpr uint64_t kLatestOutcomeNs = kTimeoutNs + 2 * kMillisecondNs;

// How many seeds to run: as many as TOWLINE_SIMULATIONS says, or the usual number. Under a sanitizer, where each takes several
// times as long, a quarter of that is usual. scripts/nightly runs many under each. Not for simulations that wait for rare
// faults: a quarter of their seeds has none.
inline uint64_t simulations(uint64_t usual) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  usual = (usual + 3) / 4;
#endif
  return Config::from_process().get_u64("simulations", usual);
}

// Driven by the caller, over framed in-process connections, with short times to notice a loss.
inline AgentOptions simulated_agent(std::string name, const Clock* clock) {
  AgentOptions options;
  options.name = std::move(name);
  options.hosted = false;
  options.listen = "none";
  options.backends = {"memory"};
  options.clock = clock;
  options.default_timeout_ns = kTimeoutNs;
  options.config.set("tuning.memory.framed", "true");
  options.config.set("peer.heartbeat", "20ms");
  options.config.set("peer.suspect", "60ms");
  options.config.set("peer.lost", "200ms");
  options.config.set("log.level", "off");
  return options;
}

}  // namespace towline::testing
