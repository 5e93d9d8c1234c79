// Finds the backends that could move these bytes, and the reasons against the others. Transfer::establish
// tries them in turn (does a connection come up, can a region be mapped), cheapest backend first, or in the
// agent's order of preference.
#pragma once

#include <cstdint>
#include <string>

#include "agent/backend_host.h"
#include "towline/towline.h"

namespace towline {

class BlockList;
class Peer;

// The requirement for a backend: an operation on these kinds of memory, one bit each. Without kinds:
// messages.
struct Need {
  uint32_t op = TOWLINE_READ;
  uint32_t local = 0;
  uint32_t remote = 0;
};
Need need_of(uint32_t op, const BlockList& local, const BlockList& remote) noexcept;

const char* kind_name(uint32_t kind) noexcept;

// True if the backend is worth trying. `forced`: the only one allowed; empty: any. Cheap: a backend's answer
// about a peer is kept until the peer's metadata changes. The caller holds no worker's lock.
bool may_do(Backend& backend, Peer& peer, const Need& need, const std::string& forced);

// The same for people: the reason against it. Empty: none.
std::string reason_against(Backend& backend, Peer& peer, const Need& need, const std::string& forced);

}  // namespace towline
