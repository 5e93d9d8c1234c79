// Transfers of tests whose direction is a parameter: a read fills this agent's blocks, a write sends them.
#pragma once

#include "towline/towline.hpp"

namespace towline {

enum class Op : uint32_t { read = TOWLINE_READ, write = TOWLINE_WRITE };

[[nodiscard]] inline Transfer directed(const Agent& agent, Op op, const PickedBlocks& mine,
                                       const PickedBlocks& theirs, const TransferOptions& options = {}) {
  return op == Op::read ? agent.transfer(theirs, mine, options) : agent.transfer(mine, theirs, options);
}

}  // namespace towline
