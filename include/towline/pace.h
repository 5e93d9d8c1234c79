// Limits of bandwidth. They hold for what this agent's own posts and transfers move, in both directions and over every
// backend, not for what peers move to or from this agent's memory.
//
// A post under limits goes in slices of a quarter of a millisecond at the lowest rate, and takes turns with the others
// under the same limit. Half a millisecond is saved up at most. So in any 10 ms no more than 10.75 ms worth of bytes
// begin, and as long as the path and the threads that make progress keep up, no less than 9.25. Bytes in two legs go by
// the staging chunk, posts in a stream (gpu.h) in one piece: for these a limit holds on average.
//
// All bytes per second; 0: no limit. Any thread may set them at any time. They hold for the slices that begin later.
// While no limit is set they cost nothing. A transfer (towline_transfer_t) that was there when the first limit was set
// posts in a slower way from then on.
#pragma once

#include <towline/plan.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum towline_limit_t {
  TOWLINE_LIMIT_ALL = 0,      // all posts of the agent
  TOWLINE_LIMIT_BULK = 1,     // those of TOWLINE_PRIORITY_BULK
  TOWLINE_LIMIT_LATENCY = 2,  // those of TOWLINE_PRIORITY_LATENCY
} towline_limit_t;

// `which`: towline_limit_t. A post is under all limits that concern it: those of the agent, its peer and its group.
TOWLINE_API int32_t towline_agent_set_limit(towline_agent_t* agent, uint32_t which, uint64_t bytes_per_s);
TOWLINE_API int32_t towline_peer_set_limit(towline_peer_t* peer, uint64_t bytes_per_s);
// Its members together.
TOWLINE_API int32_t towline_group_set_limit(towline_group_t* group, uint64_t bytes_per_s);

#ifdef __cplusplus
}
#endif
