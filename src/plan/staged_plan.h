// A plan whose bytes take two steps, through bounce memory: cut into chunks, and for each slot of that memory
// the plans of both steps.
//
// Chunk i is the bytes [i * chunk_bytes, (i + 1) * chunk_bytes) of the plan, the last one what is left. It
// goes through slot i % slots of the memory. A slot's plans are its chunks in order. The caller posts the range
// of one chunk at a time.
//
// A plan that writes objects (stage_objects) is cut in the order of the objects' bytes, since an object is
// uploaded from front to back. The step that writes has one plan of all chunks, the same for each slot, so that
// the backend knows the whole objects. Chunk i is that plan's bytes from i * chunk_bytes on.
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

// Bounce memory: a region with slots * chunk_bytes from `address` on; chunk_bytes below 2^32.
struct Bounce {
  const towline_region_ref& region;
  uint64_t address;
  uint64_t chunk_bytes;
  uint32_t slots;
};

// A column for each slot; there are not more slots than chunks. Throws Error(kLimitExceeded) when there are
// more pieces than a list can have, and as Plan::in_order does for regions without the access that `op` needs.
std::vector<StagedColumn> stage_plan(const Plan& whole, uint32_t op, const Bounce& bounce);

// The part of a plan that writes to one object.
struct StagedObject {
  uint64_t bytes;
  uint64_t end;  // where its bytes end, in the order of the chunks
  // The hull of its bytes in the plan that was cut.
  uint64_t plan_begin;
  uint64_t plan_end;
};

struct StagedObjects {
  std::vector<StagedColumn> columns;
  std::vector<StagedObject> objects;  // one behind the other
};

// As stage_plan, for a plan that writes objects: its remote side for TOWLINE_WRITE, else its local one.
StagedObjects stage_objects(const Plan& whole, uint32_t op, const Bounce& bounce);

// One leg between the plan's own sides, where the remote side's memory lies in this process as well: `here`
// are its regions as they lie here. Memory is that side, target the plan's local one. Throws as stage_plan.
StagedLeg straight_plan(const Plan& whole, uint32_t op, std::span<const towline_region_ref> here);

}  // namespace towline
