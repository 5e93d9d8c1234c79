// C API: limits of bandwidth.
#include "towline/pace.h"

#include "agent/group.h"
#include "capi/handles.h"

using namespace towline;  // NOLINT: C entry points

extern "C" {

int32_t towline_agent_set_limit(towline_agent_t* agent, uint32_t which, uint64_t bytes_per_s) {
  return capi::guard(__func__, [&] {
    capi::need(agent, "agent");
    agent->agent->check_usable();
    if (which > TOWLINE_LIMIT_LATENCY)
      fail(Status::kInvalidArgument, "which is {}; it is TOWLINE_LIMIT_ALL, _BULK or _LATENCY", which);
    Limits& limits = agent->agent->limits();
    agent->agent->set_limit(which == TOWLINE_LIMIT_ALL ? limits.all : limits.by_priority[which - 1],
                            bytes_per_s);
    return Status::kOk;
  });
}

int32_t towline_peer_set_limit(towline_peer_t* peer, uint64_t bytes_per_s) {
  return capi::guard(__func__, [&] {
    capi::need(peer, "peer");
    peer->agent->check_usable();
    peer->agent->set_limit(peer->peer->pace(), bytes_per_s);
    return Status::kOk;
  });
}

int32_t towline_group_set_limit(towline_group_t* group, uint64_t bytes_per_s) {
  return capi::guard(__func__, [&] {
    capi::need(group, "group");
    reinterpret_cast<Group*>(group)->set_limit(bytes_per_s);
    return Status::kOk;
  });
}

}  // extern "C"
