// The plugin ABI, major version 1. A backend is a shared library (or built in) that provides C tables.
//
// Entry. The library exports `towline_plugin_v1`, which returns the first, second, ... of the backends that it
// offers. What it returns lives as long as the library. Towline asks each for the tables it has by id.
//
// Growth. Structs begin with their size and only grow at the end; sized.h says how they are taken, and the
// *_MINIMUM below say what every release has had. Slots after a table's minimum are optional: null where the
// backend has no use for them. A struct that is an element of an array (towline_region_ref, towline_extent,
// towline_flat_block, towline_run, towline_directory_item) has no size and never changes. Only
// towline_move_v1 is such an element with a size: the receiver steps by it.
//
// Life. discovered -> loaded -> initialised (open) -> connections come and go -> close -> unloaded. An error
// at any step is reported with the plugin's name, the step and the text that the backend passed to
// host->fail.
//
// Threads. An agent has one or more *workers*. Everything that belongs to a connection (connect, disconnect,
// prepare, import, submit, send, cancel, progress) is called by one thread at a time, under that worker's
// lock; worker 0's lock covers address and probe, and open and close hold every worker's. add and remove are
// called by a thread of the application, one at a time, under no worker's lock: they may block, and everything
// else of the backend goes on meanwhile. One exception: a prepared plan with TOWLINE_PREPARED_CONCURRENT may be
// submitted by any thread without a lock as long as the submit carries no message. No call may block, except
// where said: an import or prepare that has to block gives that work to host->run.
//
// Done means there. submit either finishes the part at once (TOWLINE_OK: the bytes are visible), accepts it
// (TOWLINE_IN_PROGRESS: host->complete follows exactly once, and after it no byte of the part can land where
// the result's fences say so), or refuses it (anything negative: nothing happened). cancel only hurries that
// completion.
//
// Messages. send() carries small byte strings to the peer's agent, reliably and in order on one connection; a
// message attached to a submit arrives after the submit's data is visible to the peer. Only the core
// interprets them (notices, counters, credits, heartbeats, revocations).
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <towline/plugin/plan.h>
#include <towline/plugin/sized.h>
#include <towline/status.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TOWLINE_PLUGIN_MAJOR 1
#define TOWLINE_MAX_MESSAGE_BYTES (65536 + 256)
#define TOWLINE_MAX_TOKEN_BYTES 65535  // a length of 16 bits in the metadata
#define TOWLINE_MAX_ADDRESS_BYTES 65535

typedef struct towline_backend towline_backend;            // one agent's instance of a backend
typedef struct towline_connection towline_connection;      // one worker's connection to one peer
typedef struct towline_registration towline_registration;  // local memory as the backend knows it
typedef struct towline_import towline_import;              // a peer's region as reached over one connection
typedef struct towline_storage towline_storage;            // an open file, device or object
typedef struct towline_capture towline_capture;            // what an accelerator's graph holds of a transfer
typedef struct towline_view towline_view;                  // memory that code on an accelerator reaches

// The identity of an agent, for connecting and accepting.
typedef struct towline_identity {
  size_t struct_size;
  uint64_t incarnation[2];
  uint64_t host[2];        // boot id: equal on one kernel
  uint64_t pid;            // in its own pid namespace
  uint64_t pid_namespace;  // inode number
  uint64_t start_time;     // of the process, clock ticks since boot: tells a reused pid
  uint64_t network_namespace;
  uint32_t caller_driven;  // its progress happens only in its application's calls
  uint32_t workers;
  const char* name;  // NUL-terminated
} towline_identity;
#define TOWLINE_IDENTITY_MINIMUM TOWLINE_BYTES_THROUGH(towline_identity, name)

enum {  // fences, as in towline.h
  TOWLINE_PART_FENCED_LOCAL = 1,
  TOWLINE_PART_FENCED_REMOTE = 2,
};

typedef struct towline_part_result {
  size_t struct_size;
  int32_t status;       // TOWLINE_OK or why it failed
  int32_t vendor_code;  // errno or the like; 0: none
  uint32_t fences;      // TOWLINE_PART_FENCED_*
  uint32_t reserved;
  uint64_t bytes;  // moved for certain, wherever they lie
  // The byte range of the plan that failed, if status is an error; empty: unknown. All bytes of the part
  // before the range have been moved.
  uint64_t failed_begin;
  uint64_t failed_end;
} towline_part_result;
#define TOWLINE_PART_RESULT_MINIMUM TOWLINE_BYTES_THROUGH(towline_part_result, failed_end)

enum {                        // connection events
  TOWLINE_CONNECTION_UP = 1,  // usable now
  TOWLINE_CONNECTION_DOWN =
      2,  // broken or refused: every part in flight has been or is being completed; core will disconnect
};

typedef void (*towline_ready_fn)(void* argument, uint32_t epoll_events);
struct towline_landing_table_v1;
struct towline_plugin_v1_t;

// The core's services for a backend. Callable on a worker's thread under its lock unless stated otherwise.
typedef struct towline_host_v1_t {
  size_t struct_size;
  void* context;
  // Monotonic nanoseconds; virtual in simulations. Any thread.
  uint64_t (*now_ns)(void* context);
  // Level: 0 error, 1 warning, 2 info, 3 debug. Any thread.
  void (*log)(void* context, int32_t level, const char* text);
  // Sets the reason why the current call fails; the text is copied.
  void (*fail)(void* context, const char* text);
  // A configuration value by dotted key ("tcp.sockets"), or `fallback`. The text lives until the next call.
  const char* (*config)(void* context, const char* key, const char* fallback);
  const towline_identity* (*self)(void* context);
  uint32_t (*worker_count)(void* context);
  // Watches a file descriptor for epoll events; ready is called on the worker, which does not sleep while they
  // last. With EPOLLET they only wake it, and ready may not be called. unwatch before closing it. rewatch with no
  // events pauses it, at no cost to the writer, until the next rewatch.
  int32_t (*watch)(void* context, uint32_t worker, int fd, uint32_t epoll_events, towline_ready_fn ready,
                   void* argument);
  int32_t (*rewatch)(void* context, uint32_t worker, int fd, uint32_t epoll_events, towline_ready_fn ready,
                     void* argument);
  void (*unwatch)(void* context, uint32_t worker, int fd);
  // Makes a sleeping worker run soon. Any thread.
  void (*wake)(void* context, uint32_t worker);

  // A part ended. Exactly once for every submit that returned TOWLINE_IN_PROGRESS.
  void (*complete)(void* context, uint64_t cookie, const towline_part_result* result);
  // A message arrived on the connection that belongs to `peer`.
  void (*message)(void* context, void* peer, const void* data, size_t bytes);
  // A peer has connected: the core finds or makes the peer. Refusal is a negative status.
  int32_t (*accepted)(void* context, uint32_t worker, towline_connection* connection,
                      const towline_identity* identity, void** peer);
  void (*connection_event)(void* context, void* peer, uint32_t event, int32_t status, const char* text);
  // Owner-side check for framed paths: may a peer access (TOWLINE_ACCESS_*) these bytes of the region with
  // this key? On TOWLINE_OK the region is pinned: it can't be deregistered until the pin is released.
  int32_t (*pin)(void* context, uint64_t key, uint64_t address, uint64_t bytes, uint32_t access,
                 void** pointer, void** pin);
  void (*unpin)(void* context, void* pin);
  // Framed paths: the peer moved bytes of this agent's regions by its own transfer; for the counters.
  // `direction`: TOWLINE_SERVED_*.
  void (*served)(void* context, void* peer, uint32_t direction, uint64_t bytes);
  // Framed paths: bytes of any kind arrived from the peer, so it is alive.
  void (*heard)(void* context, void* peer);
  // The backend refused an access of the peer or, if `peer` is null, a stranger's connection; for the
  // counters.
  void (*refused)(void* context, uint32_t worker, void* peer, int32_t status);
  // Backends with TOWLINE_TRAIT_TELLS_GRANTS: from now on the peer can reach the region with this key without
  // this side, so the region is not released before the peer has detached from it.
  void (*granted)(void* context, void* peer, uint64_t key);
  // The backend of this agent that copies GPU memory for others (landing.h). TOWLINE_NOT_FOUND: no open backend
  // does, and why through host->fail. Both live until the agent's backends are closed. Any thread.
  int32_t (*landing)(void* context, const struct towline_landing_table_v1** table, towline_backend** backend);
  // As pin, for GPU memory and nothing else: for backends with TOWLINE_TRAIT_LANDS, to which pin gives none.
  // `device`: the GPU's ordinal.
  int32_t (*pin_landing)(void* context, uint64_t key, uint64_t address, uint64_t bytes, uint32_t access,
                         uint64_t* device, void** pin);
  // Non-zero: an urgent submit waits for this worker's lock. A backend that copies for long returns from progress soon.
  // Cheap: to be asked every few microseconds.
  uint32_t (*urgent_waits)(void* context, uint32_t worker);
  // For work that may block, such as mapping or pinning memory: calls work(argument) soon, on a thread of the
  // agent's own and under no lock, and wakes the worker when it has returned. An import or prepare that needs the
  // result answers TOWLINE_AGAIN meanwhile. `work` must not touch the connection, which may end before it; the
  // backend stays open until it has returned. TOWLINE_AGAIN: too much waits, call again. Any thread.
  int32_t (*run)(void* context, uint32_t worker, void (*work)(void* argument), void* argument);
  // A transport that is built into Towline ("shm", "tcp"), for a backend that opens an instance of it to carry its own
  // messages. Null: unknown name. Any thread.
  const struct towline_plugin_v1_t* (*builtin)(void* context, const char* name);
} towline_host_v1_t;
#define TOWLINE_HOST_V1_MINIMUM TOWLINE_BYTES_THROUGH(towline_host_v1_t, granted)

enum {
  TOWLINE_SERVED_READ = 0,   // the peer read them from this agent
  TOWLINE_SERVED_WRITE = 1,  // the peer wrote them to this agent
};

enum {                              // traits
  TOWLINE_TRAIT_ONE_SIDED = 1,      // the peer's processor does not take part in moving data
  TOWLINE_TRAIT_OWNER_CHECKED = 2,  // every access is checked by the owner: reaches guarded regions
  TOWLINE_TRAIT_STORAGE = 4,  // connects an agent with itself only, to reach what its "storage" table opened
  TOWLINE_TRAIT_TELLS_GRANTS = 8,  // reports by host->granted what a peer reaches on a one-sided path
  TOWLINE_TRAIT_LANDS = 16,        // GPU memory through host->landing only, which gives it no pointers
};

enum {  // how far away the peers are that a move reaches; each includes those before it
  TOWLINE_WHERE_SAME_PROCESS = 1,
  TOWLINE_WHERE_SAME_HOST = 2,  // one kernel
  TOWLINE_WHERE_ANY_HOST = 3,
};

// One thing that a backend moves: each of these operations from or to any of these kinds here, against any of
// those kinds at the peer. A transfer is for the backend when some move covers each pair of kinds in it.
typedef struct towline_move_v1 {
  size_t struct_size;
  uint32_t ops;     // bit (1 << towline_op_t)
  uint32_t local;   // bit (1 << towline_kind_t)
  uint32_t remote;  // the same
  uint32_t where;   // TOWLINE_WHERE_*
} towline_move_v1;
#define TOWLINE_MOVE_V1_MINIMUM TOWLINE_BYTES_THROUGH(towline_move_v1, where)

typedef struct towline_region_args {
  size_t struct_size;
  towline_region_ref region;  // as registered here (add) or as the peer's metadata says (import)
  int fd;                     // add: descriptor of the shared memory that contains it, if known; else -1
  uint64_t fd_offset;
  towline_storage* storage;  // add: the storage of the region, opened by this backend; else null
} towline_region_args;

// table "memory"

typedef struct towline_memory_table_v1 {
  size_t struct_size;
  // Registers a region; writes a token of at most TOWLINE_MAX_TOKEN_BYTES that becomes part of the metadata
  // (*token_bytes may stay 0). TOWLINE_UNSUPPORTED: not memory for this backend. May block: no worker waits.
  int32_t (*add)(towline_backend* backend, const towline_region_args* args,
                 towline_registration** registration, void* token, size_t* token_bytes);
  void (*remove)(towline_backend* backend, towline_registration* registration);
  // Imports a peer's region over a connection that is up. TOWLINE_AGAIN: the peer was asked, call again later
  // (the core calls again with the same `*import`, and calls unimport if an error leaves one there). `how`
  // receives a few words for people, such as "mapped memfd". Does not block: host->run is for what would.
  int32_t (*import)(towline_connection* connection, const towline_region_args* args, const void* token,
                    size_t token_bytes, towline_import** import, char how[64]);
  void (*unimport)(towline_connection* connection, towline_import* import);

  // Optional. The address of an imported region's first byte in this process, valid as long as a plan
  // prepared from the import exists. TOWLINE_UNSUPPORTED: it is not mapped. Called under the lock of the
  // connection's worker.
  //
  // Storage reads into it in place of memory of ours. A thread that moves bytes there must keep that plan
  // from being released meanwhile, and must wait for nothing but the copy: the owner of the memory may be
  // waiting.
  int32_t (*reach)(towline_connection* connection, towline_import* import, uint64_t* address);

  // Optional, for backends that copy between GPU memory of this process and host memory (landing.h). Others get it
  // through host->landing.
  const struct towline_landing_table_v1* landing;
} towline_memory_table_v1;
#define TOWLINE_MEMORY_TABLE_V1_MINIMUM TOWLINE_BYTES_THROUGH(towline_memory_table_v1, unimport)

// table "connection"

typedef struct towline_connection_table_v1 {
  size_t struct_size;
  // The address at which peers reach this instance, for the metadata. *bytes: capacity, then size; 0 if it
  // accepts no connections.
  int32_t (*address)(towline_backend* backend, void* address, size_t* bytes);
  // Checks whether this peer can be reached, without contacting it. TOWLINE_OK, or an error with the reason
  // passed to host->fail.
  int32_t (*probe)(towline_backend* backend, const towline_identity* peer, const void* address, size_t bytes);
  // Starts connecting on behalf of `peer` (the core's cookie). Does not block: TOWLINE_CONNECTION_UP or _DOWN
  // follows, even before the call returns. *connection is always set if it returns TOWLINE_OK.
  int32_t (*connect)(towline_backend* backend, uint32_t worker, const towline_identity* identity,
                     const void* address, size_t bytes, uint64_t deadline_ns, void* peer,
                     towline_connection** connection);
  // Ends it: completes every part in flight with TOWLINE_PEER_LOST (or _CLOSED), then frees it. Prepared
  // plans and imports of it have been released before. No callback for it comes after the return.
  void (*disconnect)(towline_connection* connection);
  // Writes a JSON object that describes the connection, for people ({"lanes": 2, ...}).
  int32_t (*describe)(towline_connection* connection, char* json, size_t capacity);

  // Optional, for transports that can lose a connection with bytes under way at the peer. A random number by
  // which both ends identify the connection: at the connector from TOWLINE_CONNECTION_UP on, at the acceptor
  // from the host's accepted() on, until disconnect. 0: none, since the peer is older. Called under the lock
  // of the connection's worker.
  //
  // When such a connection ends, only the peer can confirm that it writes and reads nothing more for it. The
  // core asks the peer for that over another connection, and names the one that ended by this number. Without
  // it, the remote fence of such a transfer stays unknown until the peer is gone.
  uint64_t (*id)(towline_connection* connection);
  // Optional, for copies that cannot be called back, such as those of a GPU. Before disconnect, of a connection
  // that is down or given up. Whatever can be called off is called off. TOWLINE_AGAIN: copies still run, and
  // progress completes them, with their fences; the core asks again, without holding up the worker. A
  // disconnect that comes nevertheless completes them without a fence. Does not block.
  int32_t (*settle)(towline_connection* connection);
} towline_connection_table_v1;
#define TOWLINE_CONNECTION_TABLE_V1_MINIMUM TOWLINE_BYTES_THROUGH(towline_connection_table_v1, describe)

// table "data"

enum {                              // towline_prepared.flags
  TOWLINE_PREPARED_CONCURRENT = 1,  // any thread may submit it without a lock, if it has no message
  TOWLINE_PREPARED_IMMEDIATE = 2,   // submit always finishes at once
  TOWLINE_PREPARED_TRY = 4,  // only a submit with TOWLINE_SUBMIT_TRY is concurrent and immediate: it answers
                             // TOWLINE_OK, or TOWLINE_AGAIN for "not that way"; the core then submits again,
                             // under the lock and without that flag
  TOWLINE_PREPARED_CACHED = 8,  // it supports TOWLINE_SUBMIT_CACHED
};

enum {                           // towline_submit_args.flags
  TOWLINE_SUBMIT_TRY = 1,        // see TOWLINE_PREPARED_TRY
  TOWLINE_SUBMIT_HAND_OVER = 2,  // the caller's thread has other work meanwhile: copy on a thread of the
                                 // backend's own if it has one, even where the caller's would be quicker
  TOWLINE_SUBMIT_CACHED = 4,     // move what can be moved without waiting for a device. It ends soon: with
                                 // TOWLINE_AGAIN, and some bytes perhaps moved, if that was not all
  // One stretch of what its post writes to objects. The post's other submits come from prepared plans with
  // the same bytes in the same order, and `begin` and `end` count through that plan. Later submits use the same
  // local memory again, so copy the bytes and complete the submit; do not wait for the rest of an object. But
  // complete the submit with an object's last byte when the whole object has been written. Hold the last
  // submit that was copied until the next one arrives, so that cancel can end the post. When one of them
  // fails or is cancelled, end all of them and leave no object half written.
  TOWLINE_SUBMIT_COLLECT = 8,
  // Before submits without this flag, as far as they have not begun; but those must not wait for ever.
  TOWLINE_SUBMIT_URGENT = 16,
};

// Begins every backend's prepared plan.
typedef struct towline_prepared {
  size_t struct_size;
  uint32_t flags;
  uint32_t reserved;
  towline_connection* connection;
  const towline_plan* plan;
} towline_prepared;
#define TOWLINE_PREPARED_MINIMUM TOWLINE_BYTES_THROUGH(towline_prepared, plan)

typedef struct towline_prepare_args {
  size_t struct_size;
  const towline_plan* plan;
  // One for each of plan->local->regions. Null: not registered here, or a peer's memory (`reach`), which is
  // to be touched by submits with TOWLINE_SUBMIT_CACHED alone and not to be registered anywhere.
  towline_registration* const* local;
  towline_import* const* remote;  // one for each of plan->remote->regions
  uint32_t op;                    // towline_op_t
  uint32_t flags;                 // 0
} towline_prepare_args;

// A post of the application that takes several submits: parts on several workers, or chunks if it is staged.
// Two submits belong together if their posts have the same number.
typedef struct towline_post {
  size_t struct_size;
  uint64_t number;  // unique among the posts of this agent
  uint64_t bytes;   // of all its submits together
} towline_post;

typedef struct towline_submit_args {
  size_t struct_size;
  uint64_t cookie;
  uint64_t begin;  // byte range of the plan
  uint64_t end;
  const void* message;   // sent after the data; valid during the call only
  size_t message_bytes;  // 0: none
  uint32_t flags;        // TOWLINE_SUBMIT_*
  uint32_t reserved;
  const towline_post* post;  // to which this submit belongs, valid during the call; null: a single submit
} towline_submit_args;

// How often a stream came to a captured transfer. The caller fills struct_size in.
typedef struct towline_capture_runs {
  size_t struct_size;
  uint64_t begun;
  uint64_t ended;
  uint64_t refused;
  int32_t status;  // TOWLINE_OK, or the reason why runs are refused from now on
  uint32_t reserved;
} towline_capture_runs;
#define TOWLINE_CAPTURE_RUNS_MINIMUM TOWLINE_BYTES_THROUGH(towline_capture_runs, reserved)

typedef struct towline_data_table_v1 {
  size_t struct_size;
  // TOWLINE_AGAIN: not yet, since something that it needs is being made ready (host->run); the core calls again.
  int32_t (*prepare)(towline_connection* connection, const towline_prepare_args* args,
                     towline_prepared** prepared);
  void (*unprepare)(
      towline_prepared* prepared);  // no submit of it is in flight; its connection may be gone already
  int32_t (*submit)(towline_prepared* prepared, const towline_submit_args* args);
  int32_t (*send)(towline_connection* connection, const void* message, size_t bytes);
  void (*cancel)(towline_connection* connection, uint64_t cookie);
  // Does all work that is possible now for this worker's connections; returns the number of events (0: none).
  uint32_t (*progress)(towline_backend* backend, uint32_t worker, uint64_t now_ns);
  // The worker is about to sleep: request wake-ups. Returns 0, or 1 if there is work after all (then it does
  // not sleep).
  uint32_t (*arm)(towline_backend* backend, uint32_t worker);
  // The worker is awake again and polls: peers need not wake it.
  void (*disarm)(towline_backend* backend, uint32_t worker);

  // Optional, beside connection's settle. Before unprepare. Streams and graphs that hold the plan begin no copy
  // from here on. TOWLINE_AGAIN: one that they have begun still runs; the core asks again. Does not block.
  int32_t (*settle)(towline_prepared* prepared);

  // Optional, all five or none: for transports that can order what they move in a stream of an accelerator
  // (towline/gpu.h). A run is one execution of a transfer by a stream. Work in a stream stays there after its
  // plan, its connection or its backend has gone: from then on it must move nothing and use none of their
  // memory. The first three under the worker's lock.
  //
  // Puts the whole plan into the graph that the stream is recording. TOWLINE_AGAIN: the stream is not
  // recording. With `capture` null it only checks this.
  int32_t (*stream_capture)(towline_prepared* prepared, void* stream, towline_capture** capture);
  // As submit, once the stream comes to it. cancel has an effect until then.
  int32_t (*stream_submit)(towline_prepared* prepared, const towline_submit_args* args, void* stream);
  // Orders the stream's later work after the last submit of the plan, or after its capture into the same
  // graph. `capture`: the last one, or null.
  int32_t (*stream_wait)(towline_prepared* prepared, towline_capture* capture, void* stream);
  // Any thread, even after the plan, connection and backend have gone.
  void (*capture_runs)(const towline_capture* capture, towline_capture_runs* runs);
  void (*capture_forget)(towline_capture* capture);

  // Optional: points a prepared plan at another one over the same lists, in the same direction: only runs, steps,
  // blocks and bytes may differ. It may change the prepared plan's flags. No submit of it is in flight, and none
  // begins meanwhile. Any thread, no lock; does not block or allocate. Not TOWLINE_OK: not this plan; the core
  // releases it and prepares another. Null: always so.
  int32_t (*repick)(towline_prepared* prepared, const towline_plan* plan);

  // Optional, both or none: for transports with an accelerator that reaches the memory of both sides (towline/gpu.h).
  // Writes what code on it adds to addresses: one number for each of plan->local->regions and of
  // plan->remote->regions. The memory stays mapped until view_forget, also when the plan, the regions, the connection
  // or the peer have gone. TOWLINE_UNSUPPORTED: the bytes of this plan take another way. Under the worker's lock; may
  // block as long as pinning host memory takes.
  int32_t (*view)(towline_prepared* prepared, uint64_t* local, uint64_t* remote, towline_view** view);
  void (*view_forget)(
      towline_view* view);  // any thread, even after the plan, connection and backend have gone
} towline_data_table_v1;
#define TOWLINE_DATA_TABLE_V1_MINIMUM TOWLINE_BYTES_THROUGH(towline_data_table_v1, disarm)

// table "directory"

// A directory keeps values under keys, by which agents find one another (towline/directory.h). Its plugin has
// only this table, and its `open` and `close` above are null. A library libtowline_<name>.so serves addresses
// "<name>://".
//
// Threads. The host calls any slot from any thread, also from within done and event, except close. The plugin
// works on its own threads; it calls done and event on those, never within a call of the host, and without a
// lock that a slot needs.
typedef struct towline_directory_client towline_directory_client;

typedef enum towline_directory_op_t {
  TOWLINE_DIRECTORY_GET = 1,
  TOWLINE_DIRECTORY_PUT = 2,
  TOWLINE_DIRECTORY_REMOVE = 3,
} towline_directory_op_t;

enum {                               // flags of calls and watches
  TOWLINE_DIRECTORY_LEASED = 1,      // put: removed with this client, and put again if the directory loses it
  TOWLINE_DIRECTORY_CREATE = 2,      // put: TOWLINE_ALREADY_EXISTS if the key exists
  TOWLINE_DIRECTORY_PREFIX = 4,      // get, remove: every key with this prefix
  TOWLINE_DIRECTORY_WAIT = 8,        // get: wait until there is one, or the deadline (TOWLINE_NOT_FOUND)
  TOWLINE_DIRECTORY_NO_VALUES = 16,  // get, watch: keys and revisions only
  TOWLINE_DIRECTORY_NO_CHANGES = 32,  // watch: after the state, report only removed keys
};

enum {                              // kinds of event
  TOWLINE_DIRECTORY_PUT_SEEN = 1,   // the key has this value
  TOWLINE_DIRECTORY_GONE_SEEN = 2,  // the key is gone; revision says when
  TOWLINE_DIRECTORY_RESET = 3,      // the whole state follows again: keys that it does not name are gone
  TOWLINE_DIRECTORY_SYNCED = 4,     // the state has been delivered
  TOWLINE_DIRECTORY_OFFLINE = 5,    // reconnecting, because of `text`; no event is missed
  TOWLINE_DIRECTORY_ONLINE = 6,
  TOWLINE_DIRECTORY_ENDED = 7,  // ended, with `status` and `text`
};

typedef struct towline_directory_item {
  const void* key;
  size_t key_bytes;
  const void* value;
  size_t value_bytes;
  uint64_t revision;
} towline_directory_item;

typedef struct towline_directory_host_v1 {
  size_t struct_size;
  void* context;
  void (*log)(void* context, int32_t level, const char* text);
  void (*fail)(void* context, const char* text);  // sets why the current slot fails; copies the text
  // As in towline_host_v1_t; and a variable of the environment that is not a setting of Towline, or null.
  const char* (*config)(void* context, const char* key, const char* fallback);
  const char* (*environment)(void* context, const char* name);
  // A call ended: once for every submit that returned TOWLINE_OK. `text` is the reason of a failure, or null.
  // The items are in order of their keys and valid during the call of done.
  void (*done)(void* context, uint64_t call, int32_t status, const char* text,
               const towline_directory_item* items, size_t count);
  void (*event)(void* context, uint64_t watch, uint32_t kind, const towline_directory_item* item,
                int32_t status, const char* text);
} towline_directory_host_v1;
#define TOWLINE_DIRECTORY_HOST_V1_MINIMUM TOWLINE_BYTES_THROUGH(towline_directory_host_v1, event)

typedef struct towline_directory_call_args {
  size_t struct_size;
  uint64_t call;  // the host's number for it
  uint32_t op;    // towline_directory_op_t
  uint32_t flags;
  towline_directory_item item;  // copied
  uint64_t deadline_ns;         // CLOCK_MONOTONIC
} towline_directory_call_args;

typedef struct towline_directory_table_v1 {
  size_t struct_size;
  // Reads its settings; contacts no server. `authority` and `path` are those of the address, decoded
  // ("a:1,b:2", "/namespace" or ""), `variant` what follows a + in its scheme ("tls", or "").
  int32_t (*open)(const towline_directory_host_v1* host, const char* variant, const char* authority,
                  const char* path, towline_directory_client** client);
  // Ends calls (TOWLINE_CLOSED) and watches, removes leased keys until the deadline, frees the client. May
  // block; no slot is called after it.
  void (*close)(towline_directory_client* client, uint64_t deadline_ns);
  int32_t (*submit)(towline_directory_client* client, const towline_directory_call_args* args);
  void (*cancel)(towline_directory_client* client, uint64_t call);  // hurries its end: TOWLINE_CANCELLED
  // From here on event reports the state under the prefix, SYNCED, and changes, with the host's number
  // `watch`. unwatch ends that; a few events may still come.
  int32_t (*watch)(towline_directory_client* client, uint64_t watch, const void* prefix, size_t bytes,
                   uint32_t flags);
  void (*unwatch)(towline_directory_client* client, uint64_t watch);
  // JSON object about servers, lease and watches, for people. Truncated if it does not fit; returns the full
  // size.
  size_t (*describe)(towline_directory_client* client, char* json, size_t capacity);
} towline_directory_table_v1;
#define TOWLINE_DIRECTORY_TABLE_V1_MINIMUM TOWLINE_BYTES_THROUGH(towline_directory_table_v1, describe)

// table "storage"

// The application's options; constants of storage.h.
typedef struct towline_storage_args {
  size_t struct_size;
  const char* uri;  // with its scheme; null: fd
  int fd;           // to be duplicated
  uint32_t access;  // TOWLINE_ACCESS_*, never 0
  uint32_t flags;   // TOWLINE_STORAGE_*
  uint32_t sync;    // towline_sync_t
  uint32_t mode;    // never 0
  uint64_t bytes;   // 0: the present size
} towline_storage_args;

typedef struct towline_storage_attributes {
  size_t struct_size;
  uint32_t exists;
  uint32_t kind;  // towline_kind_t
  uint64_t bytes;
  uint64_t modified_ns;  // since 1970
} towline_storage_attributes;
#define TOWLINE_STORAGE_ATTRIBUTES_MINIMUM TOWLINE_BYTES_THROUGH(towline_storage_attributes, modified_ns)

// Called once per entry; the pointers are valid during the call. Return non-zero to stop.
typedef int32_t (*towline_storage_found_fn)(void* argument, const char* uri,
                                            const towline_storage_attributes* attributes);

// Any thread, no lock: these may block. An open storage is added as a region (towline_region_args.storage)
// and reached over a connection of the agent to itself.
typedef struct towline_storage_table_v1 {
  size_t struct_size;
  const char* schemes;  // comma-separated: "file"
  int32_t (*open)(towline_backend* backend, const towline_storage_args* args, towline_storage** storage,
                  towline_storage_attributes* attributes);
  // TOWLINE_OK with `exists` 0 if it does not exist.
  int32_t (*query)(towline_backend* backend, const char* uri, towline_storage_attributes* attributes);
  // Called when no transfer of it is in flight.
  int32_t (*commit)(towline_backend* backend, towline_storage* storage);
  void (*close)(towline_backend* backend, towline_storage* storage);  // drops an uncommitted replacement

  // Optional. Calls `found` for everything whose URI begins with `prefix`, in order.
  int32_t (*list)(towline_backend* backend, const char* prefix, towline_storage_found_fn found,
                  void* argument);
} towline_storage_table_v1;
#define TOWLINE_STORAGE_TABLE_V1_MINIMUM TOWLINE_BYTES_THROUGH(towline_storage_table_v1, close)

// table "exporter"

// An exporter offers counters to a monitoring system. Its plugin has only this table, and its `open` and
// `close` above are null.
typedef struct towline_exporter_instance towline_exporter_instance;

typedef struct towline_exporter_host_v1 {
  size_t struct_size;
  void* context;
  void (*log)(void* context, int32_t level, const char* text);
  void (*fail)(void* context, const char* text);  // sets the reason why open fails; the text is copied
  // Passes the current counters, in the form of towline_host_metrics, to `take` before it returns. Any
  // thread.
  void (*collect)(void* context, void (*take)(void* argument, const char* json, size_t bytes),
                  void* argument);
} towline_exporter_host_v1;
#define TOWLINE_EXPORTER_HOST_V1_MINIMUM TOWLINE_BYTES_THROUGH(towline_exporter_host_v1, collect)

typedef struct towline_exporter_table_v1 {
  size_t struct_size;
  // Serves at "host:port"; port 0: any. The address in use is written to `bound`, with NUL.
  int32_t (*open)(const towline_exporter_host_v1* host, const char* address, char* bound, size_t capacity,
                  towline_exporter_instance** exporter);
  void (*close)(towline_exporter_instance* exporter);  // collect is not called after the return
} towline_exporter_table_v1;
#define TOWLINE_EXPORTER_TABLE_V1_MINIMUM TOWLINE_BYTES_THROUGH(towline_exporter_table_v1, close)

// the plugin itself

typedef struct towline_plugin_v1_t {
  size_t struct_size;
  uint32_t major;    // TOWLINE_PLUGIN_MAJOR
  uint32_t traits;   // TOWLINE_TRAIT_*
  const char* name;  // "tcp"
  const char* version;
  const char* description;       // one line for people
  const towline_move_v1* moves;  // what it moves, and how far; each begins where the one before ends
  size_t move_count;             // 0 for directories and exporters
  uint32_t cost;  // relative: 10 in-process copy, 20 same host, 100 network; the router tries lower first
  uint32_t reserved;
  uint64_t worst_fence_ns;   // after cancel or loss; UINT64_MAX: no bound
  const char* fence_reason;  // what decides it: "acknowledgement", "connection closed", ...
  // TOWLINE_OK when usable on this machine, else a reason in `reason`.
  int32_t (*usable)(char* reason, size_t capacity);
  int32_t (*open)(const towline_host_v1_t* host, towline_backend** backend);
  void (*close)(towline_backend* backend);  // every connection, import and registration is gone
  // Tables by id: "memory", "connection", "data", "storage", "directory"; null if it has no table of that id
  // and version.
  const void* (*query_table)(const char* id, uint32_t version);

  // Optional. JSON object about the backend, for people. Under worker 0's lock.
  int32_t (*describe)(towline_backend* backend, char* json, size_t capacity);
} towline_plugin_v1_t;
#define TOWLINE_PLUGIN_V1_MINIMUM TOWLINE_BYTES_THROUGH(towline_plugin_v1_t, query_table)

// The symbol a plugin library exports: the backend with this number, from 0 on, that the library offers; null
// from the first number on that it has none for. One library offers at most TOWLINE_MAX_PLUGINS.
typedef const towline_plugin_v1_t* (*towline_plugin_v1_fn)(uint32_t number);
#define TOWLINE_PLUGIN_V1_SYMBOL "towline_plugin_v1"
#define TOWLINE_MAX_PLUGINS 16

#ifdef __cplusplus
}  // extern "C"
#endif
