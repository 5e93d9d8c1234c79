// A network between the agents of this process, for simulations: it is cut and mended between any two of them.
// While two agents are cut off from each other, bytes that one writes wait in the ring (they arrive once the
// network is mended), the end of a connection is not seen, and a call gets no answer. Without a network
// everything passes.
//
// Only framed connections (tuning.memory.framed) go through it. It is a global for the same reason as the directory.
#pragma once

#include <memory>

#include "framing/lane.h"

namespace towline::memory {

class Network {
 public:
  Network() = default;
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;
  virtual ~Network() = default;
  // Both are incarnations. Any thread; must not block.
  [[nodiscard]] virtual bool passes(const uint64_t from[2], const uint64_t to[2]) const noexcept = 0;
};

// For connections made from now on. The network outlives them; null: none. Call it while no agent lives.
void use_network(const Network* network) noexcept;
[[nodiscard]] const Network* current_network() noexcept;

// The lane as `self` has it, across the network to `peer`. The network is not null.
std::unique_ptr<framing::Lane> across_network(std::unique_ptr<framing::Lane> lane, const Network* network,
                                              const uint64_t self[2], const uint64_t peer[2]);

}  // namespace towline::memory
