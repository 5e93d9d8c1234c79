// C API: which of two lists is the far side.
#include "capi/handles.h"

namespace towline {

namespace {

void check_list(const Agent& agent, const towline_block_list_t* list, const char* what) {
  capi::need(list, what);
  if (list->agent != agent.incarnation())
    fail(Status::kInvalidArgument, "the '{}' list belongs to another agent", what);
}

bool has_storage(const BlockList& list) noexcept {
  for (uint64_t i = 0; i < list.view().region_count; ++i)
    if (is_storage(list.view().regions[i].kind)) return true;
  return false;
}

bool from_is_far(const towline_block_list_t& from, const towline_block_list_t& to) {
  if (from.peer() != nullptr && to.peer() != nullptr)
    fail(Status::kInvalidArgument,
         "both lists are of peers ('{}' and '{}'): bytes move between a peer and this agent",
         from.peer()->name(), to.peer()->name());
  if (from.peer() != nullptr || to.peer() != nullptr) return from.peer() != nullptr;
  return has_storage(from) && !has_storage(to);
}

}  // namespace

capi::Sides capi::sides_of(Agent& agent, const towline_block_list_t* from, const towline_block_list_t* to) {
  check_list(agent, from, "from");
  check_list(agent, to, "to");
  const bool reads = from_is_far(*from, *to);
  Sides sides = {reads, reads ? to->self : from->self, reads ? from->self : to->self};
  if (sides.remote->peer() == nullptr) sides.remote = agent.as_remote(sides.remote);
  return sides;
}

}  // namespace towline
