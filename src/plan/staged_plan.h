// A plan whose bytes take two steps, through bounce memory: cut into chunks, and for each slot of that memory
// the plans of both steps.
//
// Chunk i is the bytes [i * chunk_bytes, (i + 1) * chunk_bytes) of the plan, the last one what is left. It
// goes through slot i % slots of the memory, and belongs to column i % columns: a column's plans are its
// chunks in order, all in one slot. The caller posts the range of one chunk at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "plan/plan.h"

namespace towline {

// One step of one column: bounce memory, as the local side, against one side of the whole plan.
struct StagedLeg {
  std::shared_ptr<const ResolvedList> memory;
  std::shared_ptr<const ResolvedList> target;  // numbers the same regions as the list it was cut from
  Plan plan;
};

struct StagedColumn {
  StagedLeg near;  // against the plan's local side
  StagedLeg far;   // against its remote side
};

// `memory` is a region with slots * chunk_bytes from `address` on; chunk_bytes below 2^32. There are as many
// columns as slots, or as chunks (then each plan is one chunk), and not more slots than chunks. Throws
// Error(kLimitExceeded) when there are more pieces than a list can have, and as Plan::in_order does for
// regions without the access that `op` needs.
std::vector<StagedColumn> stage_plan(const Plan& whole, uint32_t op, const towline_region_ref& memory,
                                     uint64_t address, uint64_t chunk_bytes, uint32_t slots,
                                     uint64_t columns);

// One leg between the plan's own sides, where the remote side's memory lies in this process as well: `here`
// are its regions as they lie here. Memory is that side, target the plan's local one. Throws as stage_plan.
StagedLeg straight_plan(const Plan& whole, uint32_t op, std::span<const towline_region_ref> here);

}  // namespace towline
