// Towline's C API: the only binary boundary. Everything else (C++, Python, the command line) is built on it.
//
// Conventions. Functions that can fail return a status; zero or positive is success. After a failure
// towline_last_error() returns, for this thread, a message that says what was tried, with which values, and
// what to do. Option structs begin with `struct_size`: set it to sizeof, zero the rest for defaults
// (TOWLINE_INIT does both). Functions
// that take an array of structs, or fill one in, are given sizeof of its elements. Any thread may call anything. Objects are freed by their own _destroy function;
// destroying an agent ends everything made from it, and objects still held then answer TOWLINE_CLOSED.
//
// Times are in nanoseconds. A `timeout_ns` counts from the call: 0 only looks, and TOWLINE_FOREVER has no limit. A
// `deadline_ns` is a point of CLOCK_MONOTONIC: one that has passed only looks, and TOWLINE_FOREVER never does. Calls that
// start something have a default limit: TOWLINE_DEFAULT_TIMEOUT as a timeout, 0 as a deadline; in option structs 0 is
// the default of both. A wait that ends before what it waits for answers TOWLINE_NOT_YET, and what it waits for goes on:
// TOWLINE_TIMED_OUT is only ever the end of an operation itself.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <towline/export.h>
#include <towline/status.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TOWLINE_VERSION_MAJOR 0
#define TOWLINE_VERSION_MINOR 1
#define TOWLINE_VERSION_PATCH 0
#define TOWLINE_FOREVER UINT64_MAX
#define TOWLINE_DEFAULT_TIMEOUT (UINT64_MAX - 1)
// "schema" of every JSON object that the library writes. Keys may be added under one number; it grows when a key goes, or
// changes its name, type, unit or meaning. Sentences inside may change in any version.
#define TOWLINE_JSON_SCHEMA 1

// Gives an options struct its defaults: TOWLINE_INIT(towline_agent_options_t, options);
#ifdef __cplusplus
#define TOWLINE_INIT(type, name)             \
  type name = [] {                           \
    type made_by_init = {};                  \
    made_by_init.struct_size = sizeof(type); \
    return made_by_init;                     \
  }()
#else
#define TOWLINE_INIT(type, name) type name = {.struct_size = sizeof(type)}
#endif

typedef struct towline_agent towline_agent_t;
typedef struct towline_memory towline_memory_t;
typedef struct towline_region towline_region_t;
typedef struct towline_peer towline_peer_t;
typedef struct towline_block_list towline_block_list_t;
typedef struct towline_transfer towline_transfer_t;
typedef struct towline_counter towline_counter_t;
typedef struct towline_layout towline_layout_t;  // layout.h

// "0.1.0".
TOWLINE_API const char* towline_version(void);
// The message of this thread's last failure; never null, "" if there was none.
TOWLINE_API const char* towline_last_error(void);

// Agents

typedef enum towline_progress_t {
  TOWLINE_PROGRESS_HOSTED = 0,  // Towline's own threads make progress; passive sides work without calling in
  TOWLINE_PROGRESS_CALLER = 1,  // progress happens only inside the application's calls; peers are told
} towline_progress_t;

typedef struct towline_agent_options_t {
  size_t struct_size;
  uint32_t progress;  // towline_progress_t
  uint32_t workers;   // threads that make progress, 1 to 8; 0: 1
  // "host:port[,host:port]": the addresses of every port of the agent. The metadata listener uses these
  // ports, tcp uses other ports of the same hosts. Default: "127.0.0.1:0", for peers of this host. "*:0": any
  // address; "none": opens no port.
  const char* listen;
  const char*
      advertise;  // "host[:port]" that peers should use instead of the listening address; null: detected
  const char* backends;         // comma-separated names in order of preference; null: all usable
  const char* config;           // TOML text that overrides environment and file; null: none
  uint64_t default_timeout_ns;  // deadline of transfers and control calls without one; 0: 30 s
} towline_agent_options_t;

// Creates an agent. `name`: 1 to 255 bytes without NUL. The name need not be unique; the incarnation is.
TOWLINE_API int32_t towline_agent_create(const char* name, const towline_agent_options_t* options,
                                         towline_agent_t** agent);
// Ends every transfer with TOWLINE_CLOSED, waits for local fences, says goodbye to peers, waits at most half
// a second until one-sided peers detach from its memory, and joins threads. Any thread; closing again does nothing.
// TOWLINE_BUSY in a callback on one of the agent's own threads, which can't join itself, or on the one that closes it already.
TOWLINE_API int32_t towline_agent_close(towline_agent_t* agent);
// Closes it, and frees the handle. Until then the handle of a closed agent may be used by any thread, and every call
// answers TOWLINE_CLOSED. In a callback on one of these threads: TOWLINE_IN_PROGRESS, and another thread closes it
// once the callback has returned. The handle is gone, but memory stays in use until the region is deregistered.
TOWLINE_API int32_t towline_agent_destroy(towline_agent_t* agent);
TOWLINE_API const char* towline_agent_name(const towline_agent_t* agent);
// 32 hexadecimal digits, new for every agent made.
TOWLINE_API const char* towline_agent_incarnation(const towline_agent_t* agent);
// One pass of every worker; returns the number of events handled. Needed only with
// TOWLINE_PROGRESS_CALLER.
TOWLINE_API int32_t towline_agent_progress(towline_agent_t* agent);
// A file descriptor that is readable while notices or queued completions wait to be pulled. Owned by the
// agent.
TOWLINE_API int32_t towline_agent_event_fd(towline_agent_t* agent, int* fd);
// Sleeps until a notice or queued completion is available or the timeout passes (TOWLINE_NOT_YET).
TOWLINE_API int32_t towline_agent_wait(towline_agent_t* agent, uint64_t timeout_ns);
// The address peers connect to ("10.0.0.7:7777"); empty when the agent does not listen. Size convention as
// towline_agent_info.
TOWLINE_API int32_t towline_agent_address(const towline_agent_t* agent, char* text, size_t capacity,
                                          size_t* needed);
// Backends with traits and, if not usable, the reason; regions, peers with health, topology: JSON text,
// {"schema": TOWLINE_JSON_SCHEMA, ..}. Writes at most `capacity` bytes with NUL; `needed` receives the full size. Use capacity 0 and a null buffer
// to query the size.
TOWLINE_API int32_t towline_agent_info(towline_agent_t* agent, char* json, size_t capacity, size_t* needed);
// Adds the backends of a plugin to an agent that lives: `plugin` is its file, or the name of one that lies beside
// the library or in plugin_path or is part of it ("ucx"), with settings: "ucx?transports=tcp&connections=8". Existing
// regions are registered with them, on this thread; peers that know this agent learn of that from its new
// metadata. TOWLINE_ALREADY_EXISTS, or TOWLINE_UNSUPPORTED with a text that says why it can't be taken.
TOWLINE_API int32_t towline_agent_add_backend(towline_agent_t* agent, const char* plugin);
// Counters of this agent as JSON (per peer, backend and direction), same size convention.
TOWLINE_API int32_t towline_agent_metrics(towline_agent_t* agent, char* json, size_t capacity,
                                          size_t* needed);

// Memory

typedef enum towline_kind_t {
  TOWLINE_MEMORY_DRAM = 0,
  TOWLINE_MEMORY_VRAM = 1,
  TOWLINE_MEMORY_FILE = 2,
  TOWLINE_MEMORY_BLOCK = 3,
  TOWLINE_MEMORY_OBJECT = 4,
} towline_kind_t;

enum {
  TOWLINE_ACCESS_NONE = 0,   // for this agent's use only: peers are not told of it, and can't reach it
  TOWLINE_ACCESS_READ = 1,   // peers may READ
  TOWLINE_ACCESS_WRITE = 2,  // peers may WRITE
  TOWLINE_ACCESS_ALL = 3,
};

enum {
  TOWLINE_REGION_GUARDED = 1,  // reached only through paths where this agent checks every access
  TOWLINE_REGION_SHARE =
      2,  // page-aligned private memory: moved in place onto shared memory; write nothing to it meanwhile
  TOWLINE_ALLOCATE_HUGE = 4,  // towline_memory_allocate: huge pages, or fail
};

typedef struct towline_region_options_t {
  size_t struct_size;
  uint32_t access;  // TOWLINE_ACCESS_*: what peers may do
  uint32_t flags;   // TOWLINE_REGION_*
  uint32_t kind;    // towline_kind_t
  uint64_t device;  // GPU ordinal, file descriptor and so on; 0 for dram
  // 1 to 255 bytes, of which peers are told; null: none. TOWLINE_ALREADY_EXISTS: another region of the agent has it.
  const char* name;
  const towline_layout_t* layout;  // of a region with a name; null: none
} towline_region_options_t;

// Memory that peers on this host can map: sealed shared memory, zeroed, page-aligned.
TOWLINE_API int32_t towline_memory_allocate(uint64_t bytes, uint32_t flags, towline_memory_t** memory);
TOWLINE_API void* towline_memory_address(const towline_memory_t* memory);
TOWLINE_API uint64_t towline_memory_bytes(const towline_memory_t* memory);
TOWLINE_API int32_t towline_memory_free(towline_memory_t* memory);

// Registers [address, address + bytes). The memory must stay valid until deregistered. Overlapping
// registrations are allowed; each has its own access rights. Without access the region serves the near side of
// transfers: the memory that this agent's own READs fill and its WRITEs send.
TOWLINE_API int32_t towline_region_register(towline_agent_t* agent, void* address, uint64_t bytes,
                                            const towline_region_options_t* options,
                                            towline_region_t** region);
// Refuses new work, tells peers, waits until work in flight is fenced, frees the handle. TOWLINE_NOT_YET: a
// peer has not detached yet (the last error names it); do not reuse the memory, and repeat the call.
TOWLINE_API int32_t towline_region_deregister(towline_region_t* region, uint64_t timeout_ns);
// Deregisters without waiting for peers, and frees the handle. Once nothing uses the memory any more, or the agent has
// closed, calls released(owner), if it is not null: once, during this call or on a thread of the agent's. Until then the
// memory must stay valid. `released` may call no function of the agent that waits.
TOWLINE_API int32_t towline_region_release(towline_region_t* region, void (*released)(void* owner),
                                           void* owner);
TOWLINE_API uint64_t towline_region_key(const towline_region_t* region);

// Peers and metadata

typedef enum towline_health_t {
  TOWLINE_HEALTH_UNKNOWN = 0,  // never connected
  TOWLINE_HEALTH_ALIVE = 1,
  TOWLINE_HEALTH_SUSPECT = 2,  // silent for longer than a heartbeat
  TOWLINE_HEALTH_LOST = 3,     // gone or unreachable; a later post tries again if it is the same incarnation
} towline_health_t;

// This agent's public metadata as a blob: addresses, and all regions with access, or only those of `regions` when
// `count` > 0 (TOWLINE_PERMISSION_DENIED: one of those has none). Same size convention as towline_agent_info.
TOWLINE_API int32_t towline_agent_metadata(towline_agent_t* agent, towline_region_t* const* regions,
                                           size_t count, void* blob, size_t capacity, size_t* needed);
// Adds a peer from a blob, or adds the blob's regions to a known peer (same incarnation). A blob with another
// incarnation under the name of a peer that was added or connected to replaces that peer, whose handles then
// answer TOWLINE_PEER_RESTARTED. If the old agent is still there, both stay: its process runs on this host,
// it is connected, or it answers at its address within half a second.
TOWLINE_API int32_t towline_peer_add(towline_agent_t* agent, const void* blob, size_t bytes,
                                     towline_peer_t** peer);
// Exchanges metadata with the agent listening at "host:port", "[v6]:port", "unix:/path" or "unix:@name"; or
// waits until an agent is published in a directory, "etcd://host:port/name" (see directory.h), and fetches
// it.
TOWLINE_API int32_t towline_peer_connect(towline_agent_t* agent, const char* address, uint64_t timeout_ns,
                                         towline_peer_t** peer);
// A known peer by name, including unsolicited ones; TOWLINE_NOT_FOUND otherwise. TOWLINE_ALREADY_EXISTS:
// several live agents have the name; find each by its incarnation (towline_peer_incarnation,
// towline_notice_t), which may be given instead of a name. Each success adds a reference.
//
// A connection or blob that arrives unasked makes an *unsolicited* peer. It is separate from a peer of the
// same incarnation that was added or connected to, and does not change that one, because nothing proves who
// sent it. Unused unsolicited peers (no connection, reference, list or notice) are removed when the limits
// tuning.peer.unsolicited and tuning.peer.unsolicited_bytes are reached.
TOWLINE_API int32_t towline_peer_find(towline_agent_t* agent, const char* name, towline_peer_t** peer);
// Fetches the peer's current metadata (new regions) from the address at which it listens.
// TOWLINE_UNREACHABLE: it does not listen; let it send a new blob.
TOWLINE_API int32_t towline_peer_refresh(towline_peer_t* peer, uint64_t timeout_ns);
// Forgets the peer: everything in flight to it ends with TOWLINE_CANCELLED, its lists and transfers answer
// TOWLINE_STALE. On success this reference is dropped as well.
TOWLINE_API int32_t towline_peer_remove(towline_peer_t* peer);
// Drops this reference; the agent keeps the peer, an unsolicited one only until its room is needed.
TOWLINE_API void towline_peer_release(towline_peer_t* peer);
TOWLINE_API const char* towline_peer_name(const towline_peer_t* peer);
TOWLINE_API const char* towline_peer_incarnation(const towline_peer_t* peer);
TOWLINE_API uint32_t towline_peer_health(const towline_peer_t* peer);

typedef struct towline_region_info_t {
  uint64_t key;
  uint64_t address;
  uint64_t bytes;
  uint64_t device;
  uint32_t kind;
  uint32_t access;
  uint32_t flags;
  uint32_t reserved;
} towline_region_info_t;

// The known regions of the peer, in the order of registration as long as it has deregistered none; `count` is
// the capacity on entry and the total number on return. `region_bytes`: sizeof(towline_region_info_t).
TOWLINE_API int32_t towline_peer_regions(const towline_peer_t* peer, towline_region_info_t* regions,
                                         size_t region_bytes, size_t* count);
// Describes an own region, of memory or storage. `info_bytes`: sizeof(towline_region_info_t).
TOWLINE_API int32_t towline_region_info(const towline_region_t* region, towline_region_info_t* info,
                                        size_t info_bytes);
// The number that blocks of this region have in `device`.
TOWLINE_API uint64_t towline_region_device(const towline_region_t* region);

// Block lists

#define TOWLINE_MAX_DIMENSIONS 4

// One contiguous `length` repeated over up to four nested dimensions, outermost first: block (i0,i1,..) lies
// at address + i0*stride[0] + i1*stride[1] + .. ; the last dimension counts fastest. dimensions = 0 is one
// block.
typedef struct towline_blocks_t {
  uint64_t address;
  uint64_t length;
  uint64_t device;
  uint32_t kind;        // towline_kind_t
  uint32_t dimensions;  // 0 to TOWLINE_MAX_DIMENSIONS
  uint64_t count[TOWLINE_MAX_DIMENSIONS];
  uint64_t stride[TOWLINE_MAX_DIMENSIONS];
} towline_blocks_t;

// A validated list over this agent's own regions (peer null) or a peer's. Block indices count through the
// entries. Every block must lie in one registered region; the error names the first that does not.
// `block_bytes`: sizeof(towline_blocks_t).
TOWLINE_API int32_t towline_block_list_create(towline_agent_t* agent, towline_peer_t* peer,
                                              const towline_blocks_t* blocks, size_t block_bytes,
                                              size_t count, towline_block_list_t** list);
// The same from `count` plain blocks: addresses and lengths as arrays, read with the given byte strides (so
// that rows of an N x 3 array need no copy).
TOWLINE_API int32_t towline_block_list_create_flat(towline_agent_t* agent, towline_peer_t* peer,
                                                   uint32_t kind, const uint64_t* addresses,
                                                   size_t address_stride_bytes, const uint64_t* lengths,
                                                   size_t length_stride_bytes, uint64_t device, size_t count,
                                                   towline_block_list_t** list);
TOWLINE_API void towline_block_list_destroy(towline_block_list_t* list);
TOWLINE_API uint64_t towline_block_list_blocks(const towline_block_list_t* list);
TOWLINE_API uint64_t towline_block_list_bytes(const towline_block_list_t* list);

// Transfers

// What an access is to the agent that posts, as backends (plugin/v1.h) and hooks (observe.h) see it.
typedef enum towline_op_t {
  TOWLINE_READ = 0,   // from a peer, or from storage
  TOWLINE_WRITE = 1,  // to a peer, or to storage
} towline_op_t;

// Which blocks of a list, in order: `count` indices of 4 or 8 bytes, or with `indices` null the range start,
// start + step, ...
typedef struct towline_picks_t {
  const void* indices;
  uint32_t index_bytes;
  uint32_t reserved;
  uint64_t start;
  uint64_t step;
  uint64_t count;
} towline_picks_t;

typedef struct towline_completion_t {
  void* user_data;
  towline_transfer_t* transfer;
  int32_t status;
  uint32_t reserved;
  uint64_t bytes;
} towline_completion_t;

// Called on the thread that finds the outcome, after other threads may have seen it: if one of them may
// destroy the transfer, do not use it here. No lock is held: any function of this API may be called.
typedef void (*towline_callback_t)(const towline_completion_t* completion);

typedef struct towline_transfer_options_t {
  size_t struct_size;
  // Blocks of `from` and of `to`, paired in order. All zero: every block. Indices are read during the call.
  towline_picks_t from;
  towline_picks_t to;
  const void* notice;  // delivered to the peer after the data; copied
  size_t notice_bytes;
  uint64_t counter_key;  // the peer's counter to add to after the data; 0: none
  uint64_t counter_add;
  uint64_t timeout_ns;        // from each post; 0: the agent's default
  const char* backend;        // force one backend by name; null: the router chooses
  uint32_t workers;           // to split the work over, 0 or 1: one
  uint32_t queue_completion;  // non-zero: queue a completion at the agent
  void* user_data;            // returned with completions and callbacks
  towline_callback_t callback;
} towline_transfer_options_t;

// A move whose picks are fixed: post it any number of times, once at a time. It costs less to post than a plan
// (plan.h), which takes new picks with each post. Exactly one of the lists is a peer's, or both are this agent's. Both
// sides must hold the same number of bytes; block sizes may differ where one divides into the other.
TOWLINE_API int32_t towline_transfer_create(towline_agent_t* agent, towline_block_list_t* from,
                                            towline_block_list_t* to,
                                            const towline_transfer_options_t* options,
                                            towline_transfer_t** transfer);
// Starts it. TOWLINE_OK: already done. TOWLINE_IN_PROGRESS: accepted, exactly one outcome will follow.
// TOWLINE_AGAIN: not accepted, because credit or space is missing. Any other error: not accepted, and
// towline_last_error() says why. Allocates nothing, but for that text.
TOWLINE_API int32_t towline_transfer_post(towline_transfer_t* transfer);
// TOWLINE_IN_PROGRESS or the outcome; after a failed one towline_last_error() says what failed. Helps to make progress as
// towline_post_poll does (plan.h).
TOWLINE_API int32_t towline_transfer_poll(towline_transfer_t* transfer);
// Waits for the outcome; TOWLINE_NOT_YET if `timeout_ns` passes first.
TOWLINE_API int32_t towline_transfer_wait(towline_transfer_t* transfer, uint64_t timeout_ns);

enum {
  TOWLINE_FENCE_LOCAL = 1,   // no byte of the transfer can land in, or be read from, local memory any more
  TOWLINE_FENCE_REMOTE = 2,  // the same for the peer's memory
};
// Waits until the given fences hold. TOWLINE_NOT_YET if they do not hold by then. TOWLINE_UNSUPPORTED, at once: they
// will never hold, since the backend can't say when nothing moves any more; the memory may still be read or written.
TOWLINE_API int32_t towline_transfer_wait_fenced(towline_transfer_t* transfer, uint32_t fences,
                                                 uint64_t timeout_ns);
// Ends it with TOWLINE_CANCELLED if it has no outcome yet. The fence follows; wait for it before reusing
// memory.
TOWLINE_API int32_t towline_transfer_cancel(towline_transfer_t* transfer);
// Replaces the notice of later posts; TOWLINE_BUSY while in flight.
TOWLINE_API int32_t towline_transfer_set_notice(towline_transfer_t* transfer, const void* notice,
                                                size_t bytes);

typedef struct towline_failed_range_t {
  uint64_t first;  // position in the order of the transfer's blocks, not an index into a list
  uint64_t count;
  int32_t status;
  int32_t vendor_code;  // errno or the vendor library's code; 0: none
} towline_failed_range_t;

typedef struct towline_result_t {
  size_t struct_size;
  int32_t status;   // outcome of the last post, TOWLINE_IN_PROGRESS, or TOWLINE_NOT_FOUND if never posted
  uint32_t fences;  // TOWLINE_FENCE_* that hold
  uint64_t bytes;   // bytes that have certainly been moved
  uint64_t total_bytes;
  uint64_t blocks;
  uint64_t posted_at_ns;  // monotonic clock; 0, like ended_at_ns, if it was done inside post()
  uint64_t ended_at_ns;
  uint32_t failed_ranges;  // how many ranges failed (at most 8 are kept)
  uint32_t reserved;
  towline_failed_range_t failed[8];
} towline_result_t;

TOWLINE_API int32_t towline_transfer_result(const towline_transfer_t* transfer, towline_result_t* result);
// The backend that moves the bytes, its path, the reason, and the reasons against others: JSON, size
// convention as towline_agent_info.
TOWLINE_API int32_t towline_transfer_route(const towline_transfer_t* transfer, char* json, size_t capacity,
                                           size_t* needed);
// Cancels if in flight, waits for the local fence up to `timeout_ns`, frees. TOWLINE_NOT_YET: not freed,
// call again.
TOWLINE_API int32_t towline_transfer_destroy(towline_transfer_t* transfer, uint64_t timeout_ns);
// The application needs it no more: posts are refused, what is in flight is cancelled, and the agent frees it once it is
// fenced. Memory must stay valid until then, as deregistering a region awaits it. Never blocks; any thread.
TOWLINE_API void towline_transfer_release(towline_transfer_t* transfer);

// Pulls up to `capacity` ended transfers that asked for queue_completion; returns how many, never blocks.
// `completion_bytes`: sizeof(towline_completion_t).
TOWLINE_API int32_t towline_completions_pull(towline_agent_t* agent, towline_completion_t* completions,
                                             size_t capacity, size_t completion_bytes);

// Notices and counters

#define TOWLINE_MAX_NOTICE_BYTES 65536

typedef struct towline_notice_t {
  const char* peer_name;  // NUL-terminated
  const char* peer_incarnation;
  const void* data;
  size_t bytes;
  void* held;    // by the notice, until it is released
  uint64_t tag;  // queue.h; 0: none
} towline_notice_t;

// Sends a notice by itself. TOWLINE_AGAIN without credit.
TOWLINE_API int32_t towline_notice_send(towline_peer_t* peer, const void* data, size_t bytes);
// Takes the next notice; TOWLINE_AGAIN if none has arrived. Helps to make progress. The contents stay valid
// until towline_notice_release, which also returns the sender's credit. `notice_bytes`: sizeof(towline_notice_t).
TOWLINE_API int32_t towline_notice_receive(towline_agent_t* agent, towline_notice_t* notice,
                                           size_t notice_bytes);
TOWLINE_API void towline_notice_release(towline_agent_t* agent, towline_notice_t* notice);

// A 64-bit number of this agent that peers add to. The application sends them its key.
TOWLINE_API int32_t towline_counter_create(towline_agent_t* agent, uint64_t initial,
                                           towline_counter_t** counter);
TOWLINE_API uint64_t towline_counter_key(const towline_counter_t* counter);
TOWLINE_API uint64_t towline_counter_value(const towline_counter_t* counter);
// Waits until the value is at least `threshold`; TOWLINE_NOT_YET if `timeout_ns` passes first.
TOWLINE_API int32_t towline_counter_wait(towline_counter_t* counter, uint64_t threshold, uint64_t timeout_ns);
TOWLINE_API void towline_counter_destroy(towline_counter_t* counter);
// Adds to the peer's counter with this key. If the counter no longer exists, the peer drops the addition and
// counts an error.
TOWLINE_API int32_t towline_counter_add(towline_peer_t* peer, uint64_t key, uint64_t amount);

#ifdef __cplusplus
}  // extern "C"
#endif
