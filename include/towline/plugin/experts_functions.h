// What libtowline_experts.so needs of Towline's C API to reach ranks of other hosts. Its loader fills the table in from the Towline
// that it is linked with, so that the library brings no second one into the process.
#pragma once

#include <towline/plan.h>
#include <towline/plugin/sized.h>
#include <towline/queue.h>
#include <towline/towline.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct towline_experts_functions_v1 {
  size_t struct_size;
  const char* (*last_error)(void);
  int32_t (*agent_create)(const char* name, const towline_agent_options_t* options, towline_agent_t** agent);
  int32_t (*agent_destroy)(towline_agent_t* agent);
  int32_t (*agent_metadata)(towline_agent_t* agent, towline_region_t* const* regions, size_t count,
                            void* blob, size_t capacity, size_t* needed);
  int32_t (*region_register)(towline_agent_t* agent, void* address, uint64_t bytes,
                             const towline_region_options_t* options, towline_region_t** region);
  int32_t (*region_release)(towline_region_t* region, void (*released)(void* owner), void* owner);
  int32_t (*peer_add)(towline_agent_t* agent, const void* blob, size_t bytes, towline_peer_t** peer);
  int32_t (*peer_remove)(towline_peer_t* peer);
  const char* (*peer_incarnation)(const towline_peer_t* peer);
  uint32_t (*peer_health)(const towline_peer_t* peer);
  int32_t (*peer_credit_async)(towline_peer_t* peer, towline_queue_t* queue, void* user_data);
  int32_t (*block_list_create)(towline_agent_t* agent, towline_peer_t* peer, const towline_blocks_t* blocks,
                               size_t block_bytes, size_t count, towline_block_list_t** list);
  void (*block_list_destroy)(towline_block_list_t* list);
  int32_t (*plan_create)(towline_agent_t* agent, towline_block_list_t* from, towline_block_list_t* to,
                         const towline_plan_options_t* options, towline_plan_t** plan);
  void (*plan_release)(towline_plan_t* plan);
  int32_t (*plan_post)(towline_plan_t* plan, const towline_post_options_t* options, towline_post_t** post);
  int32_t (*post_poll)(towline_post_t* post);
  int32_t (*post_wait_fenced)(towline_post_t* post, uint32_t fences, uint64_t timeout_ns);
  int32_t (*post_cancel)(towline_post_t* post);
  void (*post_release)(towline_post_t* post);
  int32_t (*notice_send)(towline_peer_t* peer, const void* data, size_t bytes);
  int32_t (*notice_receive)(towline_agent_t* agent, towline_notice_t* notice, size_t notice_bytes);
  void (*notice_release)(towline_agent_t* agent, towline_notice_t* notice);
  int32_t (*queue_create)(towline_agent_t* agent, const towline_queue_options_t* options,
                          towline_queue_t** queue);
  void (*queue_release)(towline_queue_t* queue);
  int32_t (*queue_next)(towline_queue_t* queue, towline_event_t* events, size_t capacity, size_t event_bytes);
  void (*event_release)(towline_event_t* event);
} towline_experts_functions_v1;
#define TOWLINE_EXPERTS_FUNCTIONS_V1_MINIMUM \
  TOWLINE_BYTES_THROUGH(towline_experts_functions_v1, event_release)

// Of the Towline that the caller is linked with.
static inline towline_experts_functions_v1 towline_experts_functions(void) {
  towline_experts_functions_v1 made;
  made.struct_size = sizeof made;
  made.last_error = towline_last_error;
  made.agent_create = towline_agent_create;
  made.agent_destroy = towline_agent_destroy;
  made.agent_metadata = towline_agent_metadata;
  made.region_register = towline_region_register;
  made.region_release = towline_region_release;
  made.peer_add = towline_peer_add;
  made.peer_remove = towline_peer_remove;
  made.peer_incarnation = towline_peer_incarnation;
  made.peer_health = towline_peer_health;
  made.peer_credit_async = towline_peer_credit_async;
  made.block_list_create = towline_block_list_create;
  made.block_list_destroy = towline_block_list_destroy;
  made.plan_create = towline_plan_create;
  made.plan_release = towline_plan_release;
  made.plan_post = towline_plan_post;
  made.post_poll = towline_post_poll;
  made.post_wait_fenced = towline_post_wait_fenced;
  made.post_cancel = towline_post_cancel;
  made.post_release = towline_post_release;
  made.notice_send = towline_notice_send;
  made.notice_receive = towline_notice_receive;
  made.notice_release = towline_notice_release;
  made.queue_create = towline_queue_create;
  made.queue_release = towline_queue_release;
  made.queue_next = towline_queue_next;
  made.event_release = towline_event_release;
  return made;
}

#ifdef __cplusplus
}  // extern "C"
#endif
