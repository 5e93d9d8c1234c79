// Which backends could move these bytes, and why the others could not. What only trying can tell (whether a
// connection comes up, whether a region can be mapped) Transfer::establish finds out, cheapest backend first,
// or in the agent's order of preference.
#pragma once

#include <cstdint>
#include <string>

#include "agent/backend_host.h"

namespace towline {

class BlockList;
class Peer;

// What a backend is wanted for: an operation on these kinds of memory, a bit each. Without kinds: messages.
struct Need {
  uint32_t op = TOWLINE_READ;
  uint32_t local = 0;
  uint32_t remote = 0;
};
Need need_of(uint32_t op, const BlockList& local, const BlockList& remote) noexcept;

const char* kind_name(uint32_t kind) noexcept;

// Is the backend worth trying? `forced`: the only one that may be taken; empty: any. Cheap: what the backend
// said of a peer once is remembered until the peer's metadata changes. The caller holds no worker's lock.
bool may_do(Backend& backend, Peer& peer, const Need& need, const std::string& forced);

// The same for people: why it may not do. Empty: it may.
std::string reason_against(Backend& backend, Peer& peer, const Need& need, const std::string& forced);

}  // namespace towline
