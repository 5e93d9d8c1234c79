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

// The memory kinds of two lists, a bit each; null lists (messages alone) have none.
uint32_t kinds_of(const BlockList* local, const BlockList* remote) noexcept;

// Is the backend worth trying? `forced`: the only one that may be taken; empty: any. Cheap: what the backend
// said of a peer once is remembered until the peer's metadata changes. The caller holds no worker's lock.
bool may_do(Backend& backend, Peer& peer, uint32_t kinds, const std::string& forced);

// The same for people: why it may not do. Empty: it may.
std::string reason_against(Backend& backend, Peer& peer, uint32_t kinds, const std::string& forced);

}  // namespace towline
