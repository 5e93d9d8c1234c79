// The TransferEngine: RDMA writes, reads, counts and messages between engines, without an agent.
//
// An engine has rails (NIC ports), a thread, and a port for control messages. Applications hand over three
// things by their own means: an engine's address, and descriptors of its memory. Anyone with an address may
// connect; who has a descriptor may use the memory as the descriptor's access allows, as the NIC enforces it.
//
// Any thread may call anything, except destroying what another call uses. Functions return a towline_status_t;
// towline_last_error() has the sentence. In a child of fork calls answer TOWLINE_FORKED, and destroying does nothing.
// docs/fabric.md says what has been tested on which hardware.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <towline/export.h>
#include <towline/status.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct towline_fabric towline_fabric_t;
typedef struct towline_fabric_memory towline_fabric_memory_t;  // of this side
typedef struct towline_fabric_remote towline_fabric_remote_t;  // of a peer, from a descriptor
typedef struct towline_fabric_pool towline_fabric_pool_t;      // of host buffers
typedef uint64_t towline_fabric_peer_t;
typedef uint64_t towline_fabric_transfer_t;  // names a transfer until it is released; never 0

// Called on the engine's thread; they must not block, and may call anything except towline_fabric_destroy.
typedef void (*towline_fabric_message_fn)(void* context, towline_fabric_peer_t peer, const void* message,
                                          size_t bytes);
typedef void (*towline_fabric_lost_fn)(void* context, towline_fabric_peer_t peer, const char* why);
typedef void (*towline_fabric_done_fn)(void* context, int32_t status);
typedef void (*towline_fabric_counted_fn)(void* context, towline_fabric_peer_t peer, uint32_t immediate,
                                          uint32_t count);
typedef void (*towline_fabric_received_fn)(void* context, int32_t status, towline_fabric_peer_t peer,
                                           uint64_t bytes);
// Returns 0 to end the watching of the word. On the watchers' thread, under the same rules.
typedef int (*towline_fabric_changed_fn)(void* context, uint64_t old_value, uint64_t new_value);

typedef struct towline_fabric_options {
  size_t struct_size;
  const char* const*
      rails;  // "ofi:efa", "ofi:tcp;ofi_rxm@10.0.0.7", "verbs:mlx5_0/1", "ucx:tcp"; "auto": all RDMA ports
  size_t rail_count;                     // 1 to 16
  const char* listen;                    // of control messages; null: "127.0.0.1:0"
  towline_fabric_message_fn on_message;  // null: messages are dropped
  towline_fabric_lost_fn on_lost;
  void* context;
  towline_fabric_counted_fn on_counted;  // each time a peer has added to a counter
  const int32_t* worker_cpu;             // that the engine's thread runs on; null: any
  const int32_t* watcher_cpu;            // that the watchers' thread has for itself; null: any, with naps
} towline_fabric_options_t;

TOWLINE_API int32_t towline_fabric_create(const towline_fabric_options_t* options, towline_fabric_t** engine);
// Transfers under way end with TOWLINE_CLOSED, and callbacks that watch words then are refused with it. Destroys memory
// handles too. Null is nothing.
TOWLINE_API void towline_fabric_destroy(towline_fabric_t* engine);

// Blobs. `needed` receives the whole size; TOWLINE_LIMIT_EXCEEDED if it does not fit and `needed` is null.
TOWLINE_API int32_t towline_fabric_address(towline_fabric_t* engine, void* out, size_t capacity,
                                           size_t* needed);
// Returns at once; a peer that can't be reached is lost.
TOWLINE_API int32_t towline_fabric_connect(towline_fabric_t* engine, const void* address, size_t bytes,
                                           towline_fabric_peer_t* peer);
TOWLINE_API int32_t towline_fabric_disconnect(towline_fabric_t* engine, towline_fabric_peer_t peer);

enum { TOWLINE_FABRIC_READABLE = 1, TOWLINE_FABRIC_WRITABLE = 2 };  // by peers

TOWLINE_API int32_t towline_fabric_register(towline_fabric_t* engine, void* address, uint64_t bytes,
                                            uint32_t access, towline_fabric_memory_t** memory);
// The same for memory of a device, which the rails reach by a dma-buf that holds it at `offset`. The rails keep what they
// need: the caller may close `fd` afterwards. `address` is where the device has it; no processor reads or writes there.
TOWLINE_API int32_t towline_fabric_register_dma_buf(towline_fabric_t* engine, void* address, uint64_t bytes,
                                                    uint32_t access, int fd, uint64_t offset,
                                                    towline_fabric_memory_t** memory);
// The same for memory of NVIDIA's GPU `gpu`, as CUDA numbers them in this process, whose driver makes the dma-buf.
TOWLINE_API int32_t towline_fabric_register_gpu(towline_fabric_t* engine, void* address, uint64_t bytes,
                                                uint32_t access, uint32_t gpu,
                                                towline_fabric_memory_t** memory);
// TOWLINE_BUSY while a transfer that is not fenced uses it.
TOWLINE_API int32_t towline_fabric_deregister(towline_fabric_t* engine, towline_fabric_memory_t* memory);
TOWLINE_API int32_t towline_fabric_descriptor(towline_fabric_memory_t* memory, void* out, size_t capacity,
                                              size_t* needed);
TOWLINE_API int32_t towline_fabric_import(const void* descriptor, size_t bytes,
                                          towline_fabric_remote_t** remote);
// Not while a transfer that is not fenced uses it. Null is nothing.
TOWLINE_API void towline_fabric_remote_release(towline_fabric_remote_t* remote);

typedef struct towline_fabric_transfer_options {
  size_t struct_size;
  uint32_t immediate;
  uint32_t count;               // added to the peer's counter `immediate` after every byte; 0: none
  const void* message;          // delivered after every byte; copied; null: none
  size_t message_bytes;         // at most 992
  uint64_t timeout_ns;          // 0: none
  towline_fabric_done_fn done;  // with the outcome, once
  void* context;
} towline_fabric_transfer_options_t;

enum { TOWLINE_FABRIC_WRITE = 1, TOWLINE_FABRIC_READ = 2 };

// These start a transfer: TOWLINE_IN_PROGRESS, or why it was not accepted (TOWLINE_AGAIN: too many are under
// way). `options` may be null. With a null `transfer` it can't be waited for, and needs no release.
TOWLINE_API int32_t towline_fabric_single(towline_fabric_t* engine, uint32_t operation,
                                          towline_fabric_peer_t peer, towline_fabric_memory_t* local,
                                          uint64_t local_offset, towline_fabric_remote_t* remote,
                                          uint64_t remote_offset, uint64_t bytes,
                                          const towline_fabric_transfer_options_t* options,
                                          towline_fabric_transfer_t* transfer);

// Page i of a side lies at its offset + pages[i] * stride. The arrays stay valid until the transfer is fenced.
typedef struct towline_fabric_pages {
  size_t struct_size;
  const uint32_t* local_pages;
  const uint32_t* remote_pages;
  size_t count;
  uint64_t page_bytes;
  uint64_t local_stride;  // 0: page_bytes
  uint64_t remote_stride;
  uint64_t local_offset;
  uint64_t remote_offset;
} towline_fabric_pages_t;
TOWLINE_API int32_t towline_fabric_paged(towline_fabric_t* engine, uint32_t operation,
                                         towline_fabric_peer_t peer, towline_fabric_memory_t* local,
                                         towline_fabric_remote_t* remote, const towline_fabric_pages_t* pages,
                                         const towline_fabric_transfer_options_t* options,
                                         towline_fabric_transfer_t* transfer);
// A count or a message of `options`, without bytes.
TOWLINE_API int32_t towline_fabric_signal(towline_fabric_t* engine, towline_fabric_peer_t peer,
                                          const towline_fabric_transfer_options_t* options,
                                          towline_fabric_transfer_t* transfer);

// Writes to many peers as one transfer. It ends when all of it has: well, or with the first failure. A peer's
// parts count together: its counter grows by `count` for each of them, after the last byte of all.
typedef struct towline_fabric_part {
  towline_fabric_peer_t peer;
  towline_fabric_memory_t* local;  // null with 0 bytes: only the count
  uint64_t local_offset;
  towline_fabric_remote_t* remote;
  uint64_t remote_offset;
  uint64_t bytes;
} towline_fabric_part_t;
TOWLINE_API int32_t towline_fabric_scatter(towline_fabric_t* engine, const towline_fabric_part_t* parts,
                                           size_t count, const towline_fabric_transfer_options_t* options,
                                           towline_fabric_transfer_t* transfer);

// Peers that signal and meet together: 1 to 65,536, each once.
TOWLINE_API int32_t towline_fabric_group_create(towline_fabric_t* engine, const towline_fabric_peer_t* peers,
                                                size_t count, uint32_t* group);
TOWLINE_API int32_t towline_fabric_group_destroy(towline_fabric_t* engine, uint32_t group);
// The same count or message to each peer of the group, as one transfer.
TOWLINE_API int32_t towline_fabric_group_signal(towline_fabric_t* engine, uint32_t group,
                                                const towline_fabric_transfer_options_t* options,
                                                towline_fabric_transfer_t* transfer);
// Ends once every peer of the group has called it as often as this engine, with a group of the same members
// (each without itself) and the same immediate, whose counter must serve nothing else. Writes whose outcome a
// member has seen before it called have arrived. After a failure TOWLINE_STALE: make a group, and take another
// immediate.
TOWLINE_API int32_t towline_fabric_barrier(towline_fabric_t* engine, uint32_t group, uint32_t immediate,
                                           const towline_fabric_transfer_options_t* options,
                                           towline_fabric_transfer_t* transfer);

// Sends go into receives that the peer has posted, in the order in which they arrive there. Both are transfers.
// TOWLINE_OUT_OF_RANGE on both sides if the receive is too short; TOWLINE_AGAIN for a send if too many wait for
// receives. A send's options must not set the count or the message.
TOWLINE_API int32_t towline_fabric_send(towline_fabric_t* engine, towline_fabric_peer_t peer,
                                        towline_fabric_memory_t* local, uint64_t offset, uint64_t bytes,
                                        const towline_fabric_transfer_options_t* options,
                                        towline_fabric_transfer_t* transfer);
typedef struct towline_fabric_receive_options {
  size_t struct_size;
  towline_fabric_peer_t from;       // 0: any peer
  uint64_t timeout_ns;              // 0: none
  towline_fabric_received_fn done;  // with the outcome, once
  void* context;
} towline_fabric_receive_options_t;
// The memory must be TOWLINE_FABRIC_WRITABLE.
TOWLINE_API int32_t towline_fabric_receive(towline_fabric_t* engine, towline_fabric_memory_t* local,
                                           uint64_t offset, uint64_t bytes,
                                           const towline_fabric_receive_options_t* options,
                                           towline_fabric_transfer_t* transfer);
// For a receive that succeeded: the sender and the byte count.
TOWLINE_API int32_t towline_fabric_received(towline_fabric_t* engine, towline_fabric_transfer_t transfer,
                                            towline_fabric_peer_t* peer, uint64_t* bytes);

// TOWLINE_IN_PROGRESS, the outcome, or TOWLINE_STALE for a transfer that was released.
TOWLINE_API int32_t towline_fabric_poll(towline_fabric_t* engine, towline_fabric_transfer_t transfer);
// The outcome, or TOWLINE_NOT_YET when the time is over.
TOWLINE_API int32_t towline_fabric_wait(towline_fabric_t* engine, towline_fabric_transfer_t transfer,
                                        uint64_t timeout_ns);
// TOWLINE_OK once nothing of it is read or placed any more; TOWLINE_PEER_LOST if that is known of this side only;
// TOWLINE_NOT_YET.
TOWLINE_API int32_t towline_fabric_wait_fenced(towline_fabric_t* engine, towline_fabric_transfer_t transfer,
                                               uint64_t timeout_ns);
TOWLINE_API int32_t towline_fabric_cancel(towline_fabric_t* engine, towline_fabric_transfer_t transfer);
// A transfer under way goes on.
TOWLINE_API int32_t towline_fabric_release(towline_fabric_t* engine, towline_fabric_transfer_t transfer);

TOWLINE_API int32_t towline_fabric_counter(towline_fabric_t* engine, uint32_t immediate, uint64_t* value);
// TOWLINE_OK once the counter is at least `value`, or TOWLINE_NOT_YET.
TOWLINE_API int32_t towline_fabric_counter_wait(towline_fabric_t* engine, uint32_t immediate, uint64_t value,
                                                uint64_t timeout_ns);
// A transfer that ends once the counter is at least `value`: for callbacks, deadlines and cancel. Of its options
// the count and the message must not be set.
TOWLINE_API int32_t towline_fabric_counter_when(towline_fabric_t* engine, uint32_t immediate, uint64_t value,
                                                const towline_fabric_transfer_options_t* options,
                                                towline_fabric_transfer_t* transfer);
// From here on the counter's value is stored in *word too, in release order: for GPUs that look at pinned memory.
// Null ends that, before it returns.
TOWLINE_API int32_t towline_fabric_counter_mirror(towline_fabric_t* engine, uint32_t immediate,
                                                  uint64_t* word);

// Host buffers of one size in one registered piece of memory. Any thread. Destroy pools before their engine.
typedef struct towline_fabric_pool_options {
  size_t struct_size;
  uint64_t buffer_bytes;  // rounded up to a multiple of 64
  uint32_t buffers;
  uint32_t access;  // TOWLINE_FABRIC_*; receives need TOWLINE_FABRIC_WRITABLE
} towline_fabric_pool_options_t;
typedef struct towline_fabric_buffer {
  uint32_t index;
  uint32_t reserved;
  void* address;
  towline_fabric_memory_t* memory;  // of the whole pool; not to be deregistered
  uint64_t offset;                  // in it
} towline_fabric_buffer_t;
TOWLINE_API int32_t towline_fabric_pool_create(towline_fabric_t* engine,
                                               const towline_fabric_pool_options_t* options,
                                               towline_fabric_pool_t** pool);
TOWLINE_API void towline_fabric_pool_destroy(towline_fabric_pool_t* pool);
// TOWLINE_AGAIN: all are taken.
TOWLINE_API int32_t towline_fabric_pool_take(towline_fabric_pool_t* pool, towline_fabric_buffer_t* buffer);
TOWLINE_API int32_t towline_fabric_pool_give(towline_fabric_pool_t* pool, uint32_t index);

// Words that GPUs write and this side watches: `changed` gets the old and the new value. A value that is
// overwritten before the thread looks is not told. At most 512 words.
typedef struct towline_fabric_word {
  uint32_t index;
  uint32_t reserved;
  uint64_t* host;
  uint64_t gpu;  // the word's address for kernels; without GPUs that of host
} towline_fabric_word_t;
// gpus: not 0 pins the words for the GPUs of this process (TOWLINE_UNSUPPORTED without any); the first call
// decides for the engine.
TOWLINE_API int32_t towline_fabric_watch(towline_fabric_t* engine, uint32_t gpus,
                                         towline_fabric_changed_fn changed, void* context,
                                         towline_fabric_word_t* word);
// Its callback is not called any more once this returns.
TOWLINE_API int32_t towline_fabric_unwatch(towline_fabric_t* engine, uint32_t index);

typedef struct towline_fabric_rail {
  char name[64];                   // for people
  uint64_t bandwidth_bytes_per_s;  // 0: unknown
  uint64_t requests;
  uint64_t posts;
  uint64_t bytes;
  uint64_t connections;  // open now
  uint64_t breaks;
  uint64_t evictions;
  uint64_t retried;  // requests
  uint32_t down;
  int32_t numa_node;  // -1: unknown
  // The longest time from the end of a connection until the requests that it had not completed were posted again.
  uint64_t longest_pause_ns;
} towline_fabric_rail_t;
// This host's GPUs, RDMA ports and NUMA nodes as JSON, with the rails that are nearest to each GPU and node, and what the
// rail "auto" stands for. `needed` receives the whole size with NUL.
TOWLINE_API int32_t towline_fabric_topology(char* json, size_t capacity, size_t* needed);
// Fills the first `capacity` rails; `count` receives the number of all. rail_bytes: sizeof(towline_fabric_rail_t).
TOWLINE_API int32_t towline_fabric_rails(towline_fabric_t* engine, towline_fabric_rail_t* rails,
                                         size_t rail_bytes, size_t capacity, size_t* count);

#ifdef __cplusplus
}  // extern "C"
#endif
