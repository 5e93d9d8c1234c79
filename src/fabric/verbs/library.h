// libibverbs' entry points, looked up at run time. Its data path goes through tables in its objects, which the
// header's inline functions use. Tests give a table of their own.
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>

namespace towline::fabric {

struct VerbsLibrary {
  ibv_device** (*get_device_list)(int* count) = nullptr;
  void (*free_device_list)(ibv_device** list) = nullptr;
  ibv_context* (*open_device)(ibv_device* device) = nullptr;
  int (*close_device)(ibv_context* context) = nullptr;
  int (*query_device)(ibv_context* context, ibv_device_attr* attributes) = nullptr;
  int (*query_port)(ibv_context* context, uint8_t port, _compat_ibv_port_attr* attributes) = nullptr;
  int (*query_gid_ex)(ibv_context* context, uint32_t port, uint32_t index, ibv_gid_entry* entry,
                      uint32_t flags, size_t entry_size) = nullptr;
  int (*query_pkey)(ibv_context* context, uint8_t port, int index, __be16* key) = nullptr;
  ibv_pd* (*alloc_pd)(ibv_context* context) = nullptr;
  int (*dealloc_pd)(ibv_pd* domain) = nullptr;
  ibv_mr* (*reg_mr)(ibv_pd* domain, void* address, size_t length, int access) = nullptr;
  ibv_mr* (*reg_mr_iova2)(ibv_pd* domain, void* address, size_t length, uint64_t iova,
                          unsigned int access) = nullptr;  // null: an older library
  ibv_mr* (*reg_dmabuf_mr)(ibv_pd* domain, uint64_t offset, size_t length, uint64_t iova, int fd,
                           int access) = nullptr;  // null: an older library
  int (*dereg_mr)(ibv_mr* region) = nullptr;
  ibv_comp_channel* (*create_comp_channel)(ibv_context* context) = nullptr;
  int (*destroy_comp_channel)(ibv_comp_channel* channel) = nullptr;
  ibv_cq* (*create_cq)(ibv_context* context, int entries, void* cookie, ibv_comp_channel* channel,
                       int vector) = nullptr;
  int (*destroy_cq)(ibv_cq* queue) = nullptr;
  int (*get_cq_event)(ibv_comp_channel* channel, ibv_cq** queue, void** cookie) = nullptr;
  void (*ack_cq_events)(ibv_cq* queue, unsigned int count) = nullptr;
  ibv_srq* (*create_srq)(ibv_pd* domain, ibv_srq_init_attr* attributes) = nullptr;
  int (*destroy_srq)(ibv_srq* queue) = nullptr;
  ibv_qp* (*create_qp)(ibv_pd* domain, ibv_qp_init_attr* attributes) = nullptr;
  int (*modify_qp)(ibv_qp* pair, ibv_qp_attr* attributes, int mask) = nullptr;
  int (*destroy_qp)(ibv_qp* pair) = nullptr;
  int (*get_async_event)(ibv_context* context, ibv_async_event* event) = nullptr;
  void (*ack_async_event)(ibv_async_event* event) = nullptr;

  // Loaded once, and kept. Throws Error(kUnsupported).
  static const VerbsLibrary& get();
};

}  // namespace towline::fabric
