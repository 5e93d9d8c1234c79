// Event queues: one place for everything that an application waits for.
//
// An agent has a queue of its own and as many others as the application makes, so that a library and its application
// do not take each other's events. Each has a descriptor for epoll, libuv, asyncio and so on, which is readable while
// events wait (level-triggered).
//
//   towline_queue_t* queue;
//   towline_queue_create(agent, NULL, &queue);
//   towline_post_options_t options = {sizeof options};
//   options.queue = queue;
//   options.user_data = request;
//   towline_plan_post(plan, &options, NULL);
//   ...                                                    // the descriptor is readable
//   towline_event_t events[64];
//   int32_t count = towline_queue_next(queue, events, 64, sizeof *events);
//   for (int32_t i = 0; i < count; ++i) {
//     if (events[i].kind == TOWLINE_EVENT_DONE) finish(events[i].user_data, events[i].status);
//     towline_event_release(&events[i]);
//   }
//
// Each call of a function with a `queue` gives exactly one event, with the caller's `user_data`. A null queue is
// the agent's own. A queue holds a bounded number of such events, those to come included: more are refused with
// TOWLINE_AGAIN when they are asked for, so that no event is ever lost.
#pragma once

#include <towline/directory.h>
#include <towline/plan.h>
#include <towline/storage.h>
#include <towline/towline.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum towline_event_kind_t {
  TOWLINE_EVENT_DONE = 16,          // a post, group or transfer has its outcome; value: bytes that moved
  TOWLINE_EVENT_FENCED = 17,        // the fences that were asked for hold; value: TOWLINE_FENCE_*
  TOWLINE_EVENT_NOTICE = 18,        // a notice has arrived: tag, data, bytes; the peer that sent it
  TOWLINE_EVENT_SIGNAL = 19,        // a counter has reached its threshold; value: the counter's
  TOWLINE_EVENT_CONNECTED = 20,     // connecting or refreshing has ended; the peer
  TOWLINE_EVENT_DEREGISTERED = 21,  // the region is gone: its memory may be reused
  TOWLINE_EVENT_COMMITTED = 22,     // storage is durable, or why not
  TOWLINE_EVENT_DIRECTORY = 23,     // a directory's call has its outcome, or a watch has something to take
  TOWLINE_EVENT_CREDIT = 24,        // a peer that refused with TOWLINE_AGAIN can be tried again
  TOWLINE_EVENT_PEER_HEALTH =
      25,  // a peer was connected, went silent or was lost; value: its towline_health_t now
} towline_event_kind_t;

typedef struct towline_event_t {
  uint32_t kind;    // towline_event_kind_t
  int32_t status;   // the outcome
  void* user_data;  // of the call that asked for it; of a notice or of a peer's health: the queue's
  uint64_t value;
  uint64_t tag;
  const void* data;  // of a notice, until the event is released
  size_t bytes;
  towline_transfer_t* transfer;  // of TOWLINE_EVENT_DONE of a transfer; else null
  void* held;                    // by the event, until it is released
} towline_event_t;

typedef struct towline_queue_options_t {
  size_t struct_size;
  uint32_t capacity;     // events that it holds at once, to come or waiting, besides notices; 0: 16,384
  uint32_t peer_health;  // non-zero: TOWLINE_EVENT_PEER_HEALTH of every peer of the agent
  void* user_data;       // of events that no call asked for
} towline_queue_options_t;

TOWLINE_API int32_t towline_queue_create(towline_agent_t* agent, const towline_queue_options_t* options,
                                         towline_queue_t** queue);
// A handle of the agent's own queue, which gets what names no queue, and the notices that no queue has subscribed to.
// Its descriptor is towline_agent_event_fd.
TOWLINE_API int32_t towline_agent_queue(towline_agent_t* agent, towline_queue_t** queue);
// The application needs it no more; never blocks. Events that wait in it are dropped, and so are those to come; the
// credit of notices returns to their senders. Posts that name it go on. Release its events first.
TOWLINE_API void towline_queue_release(towline_queue_t* queue);

// Readable while events wait. Owned by the queue.
TOWLINE_API int32_t towline_queue_fd(towline_queue_t* queue, int* fd);
// Takes up to `capacity` events and returns how many; never blocks, and helps to make progress when there are none.
// `event_bytes` is sizeof(towline_event_t). After the agent was closed and everything was taken: TOWLINE_CLOSED.
TOWLINE_API int32_t towline_queue_next(towline_queue_t* queue, towline_event_t* events, size_t capacity,
                                       size_t event_bytes);
// Sleeps until an event waits. TOWLINE_NOT_YET: `deadline_ns` of CLOCK_MONOTONIC came first; TOWLINE_FOREVER never
// does, and one that has passed only looks.
TOWLINE_API int32_t towline_queue_wait(towline_queue_t* queue, uint64_t deadline_ns);
// Gives back what an event holds: a notice's bytes and credit, a reference to a peer, a sentence. Any thread.
TOWLINE_API void towline_event_release(towline_event_t* event);
// The peer of a notice, TOWLINE_EVENT_CONNECTED, _CREDIT or _PEER_HEALTH: each success adds a reference.
TOWLINE_API int32_t towline_event_peer(const towline_event_t* event, towline_peer_t** peer);
// Why it failed, in a sentence, until the event is released; "" after success.
TOWLINE_API const char* towline_event_error(const towline_event_t* event);

// Notices whose tag has `tag` in the bits of `mask` come to this queue: (notice's ^ tag) & mask == 0. A mask of 0 takes
// every notice. The queue that subscribed first gets a notice to which several have. At most 64 a queue.
TOWLINE_API int32_t towline_queue_subscribe(towline_queue_t* queue, uint64_t tag, uint64_t mask);
// TOWLINE_NOT_FOUND: it has not subscribed to that. Notices that wait in it stay.
TOWLINE_API int32_t towline_queue_unsubscribe(towline_queue_t* queue, uint64_t tag, uint64_t mask);

// Sends a notice with a tag. TOWLINE_AGAIN without credit. A peer of a version without tags: TOWLINE_UNSUPPORTED.
TOWLINE_API int32_t towline_notice_send_tagged(towline_peer_t* peer, uint64_t tag, const void* data,
                                               size_t bytes);
// The peer that sent a notice, with a reference.
TOWLINE_API int32_t towline_notice_peer(const towline_notice_t* notice, towline_peer_t** peer);

// Waits that report to a queue. None of them blocks. A failure of the call itself gives no event.

// TOWLINE_EVENT_FENCED once the fences hold. The post's handle may be released meanwhile. TOWLINE_STALE: its plan was
// destroyed first. TOWLINE_UNSUPPORTED: they will never hold.
TOWLINE_API int32_t towline_post_fence_async(towline_post_t* post, uint32_t fences, towline_queue_t* queue,
                                             void* user_data);
TOWLINE_API int32_t towline_group_fence_async(towline_group_t* group, uint32_t fences, towline_queue_t* queue,
                                              void* user_data);
// TOWLINE_EVENT_SIGNAL once the value is at least `threshold`. TOWLINE_STALE: the counter was destroyed first.
TOWLINE_API int32_t towline_counter_wait_async(towline_counter_t* counter, uint64_t threshold,
                                               towline_queue_t* queue, void* user_data);
// Nobody waits any more: no event comes of such calls with this queue and user_data, unless it is in the queue already.
TOWLINE_API void towline_counter_forget(towline_counter_t* counter, towline_queue_t* queue, void* user_data);
// TOWLINE_EVENT_CONNECTED with the peer, or why not. `deadline_ns` of CLOCK_MONOTONIC; 0: the agent's default timeout
// from now; one that has passed gives TOWLINE_TIMED_OUT.
TOWLINE_API int32_t towline_peer_connect_async(towline_agent_t* agent, const char* address,
                                               uint64_t deadline_ns, towline_queue_t* queue, void* user_data);
TOWLINE_API int32_t towline_peer_refresh_async(towline_peer_t* peer, uint64_t deadline_ns,
                                               towline_queue_t* queue, void* user_data);
// Frees the handle if it returns TOWLINE_OK. TOWLINE_EVENT_DEREGISTERED once nothing reaches the memory any more,
// however long that takes; or when the agent has closed.
TOWLINE_API int32_t towline_region_deregister_async(towline_region_t* region, towline_queue_t* queue,
                                                    void* user_data);
// TOWLINE_EVENT_COMMITTED. The region's handle may be freed meanwhile.
TOWLINE_API int32_t towline_storage_commit_async(towline_region_t* region, uint64_t deadline_ns,
                                                 towline_queue_t* queue, void* user_data);
// TOWLINE_EVENT_DIRECTORY once the call has its outcome; the event has its sentence. If the call is released
// first: TOWLINE_CANCELLED.
TOWLINE_API int32_t towline_directory_call_wait_async(towline_directory_call_t* call, towline_queue_t* queue,
                                                      void* user_data);
// TOWLINE_EVENT_DIRECTORY once towline_watch_next has something to take, or the reason why the watch ended. If the watch is
// released first: TOWLINE_CANCELLED.
TOWLINE_API int32_t towline_watch_wait_async(towline_watch_t* watch, towline_queue_t* queue, void* user_data);
// After TOWLINE_AGAIN, or before anything is sent: TOWLINE_EVENT_CREDIT once the peer has credit for a notice of the
// largest size, or can't be reached. Connects if there is no connection, within the agent's default timeout, so that a
// thread that must not block can send and make plans after it. Others may use the credit first: then it is TOWLINE_AGAIN again.
TOWLINE_API int32_t towline_peer_credit_async(towline_peer_t* peer, towline_queue_t* queue, void* user_data);

#ifdef __cplusplus
}  // extern "C"
#endif
