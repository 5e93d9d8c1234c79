// Plans, posts and groups: bytes move `from` one list `to` another.
//
// A *plan* is made once for a list of this agent and a list of a peer (or of this agent's files and objects). Each
// *post* of it brings picks, a notice, a deadline and so on of its own, and has an outcome of its own; several may be
// in flight. Once as many posts have been made as are ever in flight at once, posting allocates nothing, as long as
// one backend does the move in one step; where the route has legs through staging memory (towline_plan_route), each post
// makes them anew. A *group* joins posts of any plans of one agent: one outcome, one notice, one deadline.
//
// An outcome is not a fence. After an outcome other than TOWLINE_OK bytes may still land for a while: wait for the fence
// before memory is used for something else.
#pragma once

#include <towline/towline.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct towline_plan_handle towline_plan_t;
typedef struct towline_post_handle towline_post_t;
typedef struct towline_group_handle towline_group_t;
typedef struct towline_queue towline_queue_t;  // queue.h

typedef struct towline_plan_options_t {
  size_t struct_size;
  uint64_t timeout_ns;   // of posts without a deadline, from each post; 0: the agent's default
  const char* backend;   // force one backend by name; null: the router chooses
  uint64_t usual_bytes;  // of a post, for the choice of the backend; 0: 1 MiB, or the smaller list
  uint32_t recut;     // non-zero: pair the bytes of picked blocks in order, whatever their lists' layouts say
  uint32_t reserved;  // 0
} towline_plan_options_t;

// Exactly one of the lists is a peer's, or both are this agent's (memory and files, or memory alone). Finds the route;
// may wait for a connection until the timeout. TOWLINE_NO_ROUTE and others name each backend and what is
// against it; TOWLINE_MISMATCH: no number of blocks of one list is as long as a number of the other's, or the lists
// have layouts (layout.h) of different elements or numbers of dimensions. Layouts with other counts than the other's are
// refused by posts that pick nothing.
TOWLINE_API int32_t towline_plan_create(towline_agent_t* agent, towline_block_list_t* from,
                                        towline_block_list_t* to, const towline_plan_options_t* options,
                                        towline_plan_t** plan);
// The way and the ways not taken: JSON, size convention as towline_agent_info.
TOWLINE_API int32_t towline_plan_route(towline_plan_t* plan, char* json, size_t capacity, size_t* needed);
// The backend that moves the bytes now, or "staged": two legs through staging memory. Size convention as
// towline_agent_info.
TOWLINE_API int32_t towline_plan_backend(towline_plan_t* plan, char* text, size_t capacity, size_t* needed);
// How many of its posts are in flight, or held by the application.
TOWLINE_API uint32_t towline_plan_in_use(towline_plan_t* plan);
// Refuses posts, cancels what is in flight, waits for its local fence, frees. TOWLINE_NOT_YET: not freed, call
// again. TOWLINE_BUSY: the application still holds posts of it; release them and call again.
TOWLINE_API int32_t towline_plan_destroy(towline_plan_t* plan, uint64_t timeout_ns);
// The application needs it no more: posts are refused, and what is in flight is cancelled. The agent frees it once the
// posts that the application holds are released and the others are fenced; release posts before the agent ends. Memory
// must stay valid until the local fence, as deregistering a region awaits it. Never blocks; any thread.
TOWLINE_API void towline_plan_release(towline_plan_t* plan);

enum {
  // Memory of a GPU of this agent is in its lists: each post names a stream, or says TOWLINE_STREAM_UNORDERED.
  TOWLINE_PLAN_NEEDS_STREAM = 1,
  // Its posts can go in the order of a stream, by the backend that moves the bytes now.
  TOWLINE_PLAN_TAKES_STREAM = 2,
};
// TOWLINE_PLAN_*, added up; 0 for null.
TOWLINE_API uint32_t towline_plan_streams(towline_plan_t* plan);

typedef enum towline_priority_t {
  TOWLINE_PRIORITY_BULK = 0,
  // Goes before bulk that waits for the same path and has not begun. While there is always more of it, bulk still
  // gets at least an eighth of the turns.
  TOWLINE_PRIORITY_LATENCY = 1,
} towline_priority_t;

typedef enum towline_stream_kind_t {
  TOWLINE_STREAM_NONE =
      0,  // at once; refused where this agent's memory is a GPU's (TOWLINE_PLAN_NEEDS_STREAM)
  TOWLINE_STREAM_CUDA = 1,  // `stream` is a CUstream or cudaStream_t; null is the default stream (gpu.h)
  // At once, whatever streams do: the application has synchronised what writes the bytes, and reads them after the
  // outcome. `stream` is null.
  TOWLINE_STREAM_UNORDERED = 2,
} towline_stream_kind_t;

typedef struct towline_post_options_t {
  size_t struct_size;
  // Blocks of `from` and of `to`, paired in order. All zero: every block. Indices are read during the call.
  towline_picks_t from;
  towline_picks_t to;
  const void* notice;  // to the peer, after the data; copied
  size_t notice_bytes;
  uint64_t counter_key;  // the peer's counter to add to after the data; 0: none
  uint64_t counter_add;
  uint64_t deadline_ns;    // of CLOCK_MONOTONIC; 0: the plan's timeout, from now
  towline_group_t* group;  // that it joins; null: none
  void* stream;
  uint32_t stream_kind;       // towline_stream_kind_t
  uint32_t priority;          // towline_priority_t
  uint32_t queue_completion;  // non-zero: queue a completion at the agent, with `transfer` null
  uint32_t reserved;          // 0
  void* user_data;            // returned with completions and callbacks
  towline_callback_t callback;
  uint64_t tag;            // of the notice (queue.h); 0: none
  towline_queue_t* queue;  // gets the outcome (queue.h); null: none, or with queue_completion the agent's own
} towline_post_options_t;

// Starts a post. TOWLINE_OK: it is done already. TOWLINE_IN_PROGRESS: accepted, exactly one outcome will follow.
// TOWLINE_AGAIN: not accepted, because credit or space is missing, or 4,096 posts of the plan are in flight or held.
// Any other error: not accepted, and towline_last_error() says why; TOWLINE_TIMED_OUT: the deadline has passed.
//
// `post`: receives the handle of an accepted post, done or not; release it. Null: none is wanted; the outcome
// comes by completion, callback or group.
TOWLINE_API int32_t towline_plan_post(towline_plan_t* plan, const towline_post_options_t* options,
                                      towline_post_t** post);
// TOWLINE_IN_PROGRESS or the outcome. Helps to make progress, unless the agent's hosted workers sleep at once (progress.spin = 0us):
// the poll only looks then, since each would wake a worker to take over from it.
TOWLINE_API int32_t towline_post_poll(towline_post_t* post);
// Waits for the outcome; TOWLINE_NOT_YET if `timeout_ns` passes first.
TOWLINE_API int32_t towline_post_wait(towline_post_t* post, uint64_t timeout_ns);
// Waits until the given fences (TOWLINE_FENCE_*) hold. TOWLINE_NOT_YET if they do not hold by then. TOWLINE_UNSUPPORTED,
// at once: they will never hold, since the backend can't say when nothing moves any more.
TOWLINE_API int32_t towline_post_wait_fenced(towline_post_t* post, uint32_t fences, uint64_t timeout_ns);
// Ends it with TOWLINE_CANCELLED if it has no outcome yet. The fence follows.
TOWLINE_API int32_t towline_post_cancel(towline_post_t* post);
TOWLINE_API int32_t towline_post_result(const towline_post_t* post, towline_result_t* result);
// Why it failed: what was moved, the peer, the backend, the cause, and whether the local memory may be reused; "" while
// it runs and after success. Size convention as towline_agent_info.
TOWLINE_API int32_t towline_post_error(const towline_post_t* post, char* text, size_t capacity,
                                       size_t* needed);
// The backend that moves it, or has moved it, as towline_plan_backend.
TOWLINE_API int32_t towline_post_backend(const towline_post_t* post, char* text, size_t capacity,
                                         size_t* needed);
// The application needs it no more. A post in flight goes on. Never blocks.
TOWLINE_API void towline_post_release(towline_post_t* post);

// Groups

typedef struct towline_group_options_t {
  size_t struct_size;
  // To each peer of its members (at most 16), after the last byte of the last member, if all of them succeeded; copied.
  const void* notice;
  size_t notice_bytes;
  uint64_t counter_key;  // as in towline_post_options_t
  uint64_t counter_add;
  uint64_t deadline_ns;  // of CLOCK_MONOTONIC, also of every member; 0: the agent's default timeout, from now
  uint32_t priority;     // of every member, towline_priority_t
  uint32_t queue_completion;  // as in towline_post_options_t
  void* user_data;
  towline_callback_t callback;
  uint64_t tag;            // as in towline_post_options_t
  towline_queue_t* queue;  // the same
} towline_group_options_t;

TOWLINE_API int32_t towline_group_create(towline_agent_t* agent, const towline_group_options_t* options,
                                         towline_group_t** group);
// No more members come: the group ends when the last one does, or at once with TOWLINE_OK if all are done. A second
// call is refused with TOWLINE_INVALID_ARGUMENT. An open group ends by its deadline, by cancel, or by a member.
//
// A member that fails, or is refused for anything but TOWLINE_AGAIN, ends the group with its status: the other members
// are cancelled, and posts that would join are refused. So no peer gets the notice of an incomplete group.
TOWLINE_API int32_t towline_group_close(towline_group_t* group);
// As towline_post_poll.
TOWLINE_API int32_t towline_group_poll(towline_group_t* group);
// TOWLINE_NOT_YET, as of a post.
TOWLINE_API int32_t towline_group_wait(towline_group_t* group, uint64_t timeout_ns);
// The fences of all members.
TOWLINE_API int32_t towline_group_wait_fenced(towline_group_t* group, uint32_t fences, uint64_t timeout_ns);
TOWLINE_API int32_t towline_group_cancel(towline_group_t* group);

typedef struct towline_group_result_t {
  size_t struct_size;
  int32_t status;          // the outcome, or TOWLINE_IN_PROGRESS
  uint32_t fences;         // TOWLINE_FENCE_* that hold
  uint64_t members;        // that have joined
  uint64_t bytes;          // bytes that have certainly been moved
  uint64_t total_bytes;    // of all members
  uint64_t failed_member;  // the first to fail, counted from 0 in the order of joining; UINT64_MAX: none
  void* failed_user_data;  // its user_data
} towline_group_result_t;

TOWLINE_API int32_t towline_group_result(const towline_group_t* group, towline_group_result_t* result);
// Why it failed, with the first member that did; "" while it runs and after success.
TOWLINE_API int32_t towline_group_error(const towline_group_t* group, char* text, size_t capacity,
                                        size_t* needed);
// The application needs it no more. A closed group goes on; an open one is cancelled, as nobody can close it. Never
// blocks.
TOWLINE_API void towline_group_release(towline_group_t* group);

#ifdef __cplusplus
}  // extern "C"
#endif
