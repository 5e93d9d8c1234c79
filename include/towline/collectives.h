// Collectives: a communicator among ranks (processes, or threads of one), its operations, works and windows.
//
//   towline_communicator_t* world;
//   towline_communicator_create(NULL, &world);  // rank and size from torchrun, MPI or Slurm
//   // Done when it returns:
//   towline_all_reduce(world, in, out, 1024, TOWLINE_FLOAT32, TOWLINE_REDUCE_SUM, NULL, NULL);
//   // Runs beside the application:
//   towline_work_t* work;
//   towline_all_reduce(world, in, out, 1024, TOWLINE_FLOAT32, TOWLINE_REDUCE_SUM, NULL, &work);
//   towline_work_wait(work, TOWLINE_FOREVER);
//   towline_work_release(work);
//
// Conventions are those of towline.h. Every rank calls the same operations of one communicator in the same
// order, with the same sizes, types, reduction and root. If one rank differs, all ranks get the same error
// (TOWLINE_MISMATCH). Counts are in elements. Operations write only their outputs. Input and output may be
// the same memory if their parts have the same place (all_reduce, reduce, broadcast; the own part of a gather
// or scatter); otherwise they must not overlap. Buffers belong to the operation until it has ended.
//
// Failures. A communicator breaks as a whole: when one rank is lost, times out, aborts or disagrees, every
// operation in progress and every later one, on every rank, ends with the same status and message
// (towline_communicator_error). From then on no rank uses the buffers, and a new communicator may be made at
// once. Wrong arguments that a rank can detect alone (TOWLINE_INVALID_ARGUMENT and similar) do not break the
// communicator and do not count in the order.
#pragma once

#include <towline/towline.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct towline_communicator towline_communicator_t;
typedef struct towline_work towline_work_t;
typedef struct towline_batch towline_batch_t;
typedef struct towline_window towline_window_t;
typedef struct towline_hook towline_hook_t;

typedef enum towline_datatype_t {
  TOWLINE_FLOAT32 = 0,
  TOWLINE_FLOAT64 = 1,
  TOWLINE_FLOAT16 = 2,
  TOWLINE_BFLOAT16 = 3,
  TOWLINE_FLOAT8_E4M3 = 4,  // the finite kind (e4m3fn)
  TOWLINE_FLOAT8_E5M2 = 5,
  TOWLINE_INT8 = 6,
  TOWLINE_UINT8 = 7,
  TOWLINE_INT16 = 8,
  TOWLINE_UINT16 = 9,
  TOWLINE_INT32 = 10,
  TOWLINE_UINT32 = 11,
  TOWLINE_INT64 = 12,
  TOWLINE_UINT64 = 13,
  TOWLINE_BOOL = 14,  // one byte: zero or not
} towline_datatype_t;

// Bytes of one element; 0 for an unknown type.
TOWLINE_API size_t towline_datatype_bytes(uint32_t datatype);
// "float32"; "unknown" for an unknown type.
TOWLINE_API const char* towline_datatype_name(uint32_t datatype);

// Types of 16 and 8 bits are accumulated in float32 and rounded once. Ranks are combined in rank order, so
// the result is bitwise the same on every rank and in every run. MIN and MAX of a NaN are NaN. Integers wrap
// around. Bools: SUM, MAX and BOR are "any", PRODUCT, MIN and BAND "all".
typedef enum towline_reduction_t {
  TOWLINE_REDUCE_SUM = 0,
  TOWLINE_REDUCE_PRODUCT = 1,
  TOWLINE_REDUCE_MIN = 2,
  TOWLINE_REDUCE_MAX = 3,
  TOWLINE_REDUCE_BAND = 4,  // bitwise; integers and bools
  TOWLINE_REDUCE_BOR = 5,
  TOWLINE_REDUCE_BXOR = 6,
  TOWLINE_REDUCE_AVG = 7,         // the sum divided by the number of ranks; integers: towards zero; no bools
  TOWLINE_REDUCE_PREMUL_SUM = 8,  // the sum of inputs times each rank's own `factor`; no bools
} towline_reduction_t;

// "sum"; "unknown".
TOWLINE_API const char* towline_reduction_name(uint32_t reduction);

typedef enum towline_collective_op_t {
  TOWLINE_COLLECTIVE_BARRIER = 0,
  TOWLINE_COLLECTIVE_ALL_REDUCE = 1,
  TOWLINE_COLLECTIVE_REDUCE = 2,
  TOWLINE_COLLECTIVE_BROADCAST = 3,
  TOWLINE_COLLECTIVE_ALL_GATHER = 4,
  TOWLINE_COLLECTIVE_ALL_GATHER_V = 5,
  TOWLINE_COLLECTIVE_REDUCE_SCATTER = 6,
  TOWLINE_COLLECTIVE_REDUCE_SCATTER_V = 7,
  TOWLINE_COLLECTIVE_GATHER = 8,
  TOWLINE_COLLECTIVE_SCATTER = 9,
  TOWLINE_COLLECTIVE_ALL_TO_ALL = 10,
  TOWLINE_COLLECTIVE_ALL_TO_ALL_V = 11,
  TOWLINE_COLLECTIVE_SEND = 12,
  TOWLINE_COLLECTIVE_RECV = 13,
  TOWLINE_COLLECTIVE_BATCH = 14,
} towline_collective_op_t;

// "all_reduce"; "unknown".
TOWLINE_API const char* towline_collective_op_name(uint32_t op);

// Bootstrap

// A store in which ranks meet: small values under keys, such as torch's. Calls come from any thread, one at a time. `get` waits at most
// `timeout_ns` until the key exists (else TOWLINE_TIMED_OUT, and it is called again until the deadline), then writes at most `capacity`
// bytes and the full size; if `capacity` was too small it is called again with more room.
typedef struct towline_collective_store_t {
  size_t struct_size;
  void* context;
  int32_t (*set)(void* context, const char* key, const void* value, size_t bytes);
  int32_t (*get)(void* context, const char* key, uint64_t timeout_ns, void* value, size_t capacity,
                 size_t* bytes);
  // Called once, when the communicator and all split from it are gone, or none was made; may be null. Not called for a store
  // that lacks one of the others.
  void (*release)(void* context);
} towline_collective_store_t;

enum {                                     // towline_communicator_options_t.flags
  TOWLINE_COMMUNICATOR_ABORT_PROCESS = 1,  // end the process (SIGABRT) when an operation fails or times out
  TOWLINE_COMMUNICATOR_NO_SHARED_MEMORY = 2,  // use TCP on one host, too
};

typedef struct towline_communicator_options_t {
  size_t struct_size;
  const char* name;     // the same on every rank; null: "world"
  const char* backend;  // "cpu", "fake", or a registered one; null: "cpu"
  int32_t rank;         // used if size > 0; else read from the environment
  int32_t size;
  // Where ranks meet: "tcp://host:port" (rank 0 serves there; torch's TCPStore works as well), "file:/path"
  // (a folder that all ranks can reach), a directory's address ("etcd://.."; needs `agent`), "env"
  // (MASTER_ADDR and MASTER_PORT). null: "env". Ignored if `store` is given.
  const char* bootstrap;
  const towline_collective_store_t* store;
  towline_agent_t* agent;    // for a directory
  uint64_t timeout_ns;       // for operations without one, and for forming; 0: 600 s
  uint32_t flags;            // TOWLINE_COMMUNICATOR_*
  uint32_t flight_records;   // number of recorded operations; 0: 2000
  const char* config;        // TOML text over environment and file: [collectives] ...
  const char* const* hints;  // key, value, ..., null: on_gpu and order; others are kept for info
  // Called from time to time while the calling thread waits for other ranks to join, also in splits. A result other than 0
  // ends that with TOWLINE_CANCELLED. Null: not called.
  int32_t (*interrupted)(void* context);
  void* interrupt_context;
  uint64_t reserved[2];
} towline_communicator_options_t;

// Rank and size from the environment: TOWLINE_RANK/TOWLINE_SIZE, Open MPI (OMPI_COMM_WORLD_*), PMI, PALS,
// RANK/WORLD_SIZE, then Slurm. `method`: "auto", "torchrun", "mpi", "pals", "slurm"; null: "auto".
// TOWLINE_NOT_FOUND: nothing is set.
TOWLINE_API int32_t towline_collective_environment(const char* method, int32_t* rank, int32_t* size);

// Communicators

// Collective: returns when all ranks have arrived. The message of TOWLINE_TIMED_OUT names those that have
// not.
TOWLINE_API int32_t towline_communicator_create(const towline_communicator_options_t* options,
                                                towline_communicator_t** communicator);
// Waits until operations in progress end (by their timeouts), tells the other ranks that this one leaves, and
// frees the handle. Not collective. After towline_communicator_abort it does not wait. TOWLINE_BUSY inside
// one of its hooks or works' functions: nothing is freed; call it after they have returned.
TOWLINE_API int32_t towline_communicator_destroy(towline_communicator_t* communicator);
// Waits until all operations issued on this rank have ended; the communicator accepts no more. Idempotent.
// TOWLINE_BUSY as for towline_communicator_destroy.
TOWLINE_API int32_t towline_communicator_finalize(towline_communicator_t* communicator);
TOWLINE_API int32_t towline_communicator_rank(const towline_communicator_t* communicator);
TOWLINE_API int32_t towline_communicator_size(const towline_communicator_t* communicator);
TOWLINE_API const char* towline_communicator_name(const towline_communicator_t* communicator);
TOWLINE_API const char* towline_communicator_backend(const towline_communicator_t* communicator);
// Backend, ranks with hosts, NUMA nodes and processes, how each rank is reached, thresholds, hints: JSON,
// size convention as towline_agent_info.
TOWLINE_API int32_t towline_communicator_info(towline_communicator_t* communicator, char* json,
                                              size_t capacity, size_t* needed);
// For operations issued from now on.
TOWLINE_API int32_t towline_communicator_set_timeout(towline_communicator_t* communicator,
                                                     uint64_t timeout_ns);
TOWLINE_API uint64_t towline_communicator_timeout(const towline_communicator_t* communicator);
TOWLINE_API int32_t towline_communicator_set_hint(towline_communicator_t* communicator, const char* key,
                                                  const char* value);

// Collective over the parent: every rank calls it with the members of its new group, including itself: ranks
// of the parent, in the order of their new ranks. Members of one group give the same list. A rank that will
// be in no group gives count 0 and gets null. `name` null: the parent's, with the number of the split.
// timeout_ns 0: the parent's. TOWLINE_INVALID_ARGUMENT: a list without the caller, a rank twice or out of
// range.
TOWLINE_API int32_t towline_communicator_split(towline_communicator_t* parent, const int32_t* ranks,
                                               size_t count, const char* name, uint64_t timeout_ns,
                                               towline_communicator_t** communicator);

// Breaks the communicator on every rank, within a second. `reason` may be null.
TOWLINE_API int32_t towline_communicator_abort(towline_communicator_t* communicator, const char* reason);
// TOWLINE_OK, or why it broke, of operations whose stream has been waited for, too (TOWLINE_CANCELLED after an abort, TOWLINE_PEER_LOST, TOWLINE_TIMED_OUT,
// TOWLINE_MISMATCH, TOWLINE_CLOSED, TOWLINE_FORKED); `text` receives the message, size convention as
// towline_agent_info (null, 0, null: only the status).
TOWLINE_API int32_t towline_communicator_error(const towline_communicator_t* communicator, char* text,
                                               size_t capacity, size_t* needed);

// Operations

// One operation. The members that each uses:
//
//   op                input                  output                    count         also
//   barrier           -                      -                         -             -
//   all_reduce        count                  count                     elements      reduction
//   reduce            count                  count, at root            elements      reduction, root
//   broadcast         count, at root         count (root: null, input) elements      root
//   all_gather        count                  size * count              of one rank   -
//   all_gather_v      output_counts[rank]    their sum                 -             output_counts
//   reduce_scatter    size * count           count                     of one rank   reduction
//   reduce_scatter_v  sum of input_counts    input_counts[rank]        -             reduction, input_counts
//   gather            count                  size * count, at root     of one rank   root
//   scatter           size * count, at root  count                     of one rank   root
//   all_to_all        size * count           size * count              for one rank  -
//   all_to_all_v      sum of input_counts    sum of output_counts      -             both counts
//   send              count                  -                         elements      root (the peer), tag
//   recv              -                      count                     elements      root (the peer), tag
//
// A buffer with one part for each rank may also be given as a list of parts, `inputs` or `outputs` (size
// pointers, part i belongs to rank i), which replaces `input` or `output`. Parts are contiguous unless
// input_offsets/output_offsets (in elements, size entries) give their places. Broadcast: with output null or
// equal to input, `input` is the buffer on every rank (other ranks: written).
typedef struct towline_collective_t {
  size_t struct_size;
  uint32_t op;         // towline_collective_op_t
  uint32_t datatype;   // towline_datatype_t
  uint32_t reduction;  // towline_reduction_t
  int32_t root;
  uint64_t count;
  const void* input;
  void* output;
  const void* const* inputs;
  void* const* outputs;
  const uint64_t* input_counts;
  const uint64_t* output_counts;
  const uint64_t* input_offsets;
  const uint64_t* output_offsets;
  double factor;  // PREMUL_SUM
  uint64_t tag;   // send, recv: messages of one pair match by tag, in order
} towline_collective_t;

// As the root of a recv: takes the first message with its tag from any rank; towline_work_source returns the
// rank. A send and its recv must have the same type.
#define TOWLINE_ANY_RANK (-1)

typedef struct towline_collective_options_t {
  size_t struct_size;
  uint64_t timeout_ns;       // 0: the communicator's; TOWLINE_FOREVER: none
  const char* const* hints;  // as in the communicator's options; passed to hooks and backends
  // Called from time to time while the calling thread waits for the operation (not for a work), after the
  // first 50 ms. A result other than 0 ends the operation and breaks the communicator with TOWLINE_CANCELLED.
  // Null: not called.
  int32_t (*interrupted)(void* context);
  void* interrupt_context;
} towline_collective_options_t;

// Performs the operation, or with `work` starts it. Without `work`: returns its outcome. With `work`: returns
// TOWLINE_OK, and the work must be released; the arrays of counts, offsets and pointers are copied, buffers
// are not. Asynchronous operations run one after the other in the order of issue, beside the application.
// Sends and receives run beside them in any order, except that those between one pair with one tag keep their
// order. An operation that a work's function issues runs at once, before operations that were issued earlier
// but have not started.
TOWLINE_API int32_t towline_collective(towline_communicator_t* communicator, const towline_collective_t* call,
                                       const towline_collective_options_t* options, towline_work_t** work);

// A batch of sends and receives that are issued together, as one work, and do not wait for one another.
TOWLINE_API int32_t towline_batch_create(towline_communicator_t* communicator, towline_batch_t** batch);
TOWLINE_API int32_t towline_batch_add(towline_batch_t* batch, const towline_collective_t* call);
// The batch is empty again afterwards.
TOWLINE_API int32_t towline_batch_issue(towline_batch_t* batch, const towline_collective_options_t* options,
                                        towline_work_t** work);
TOWLINE_API void towline_batch_destroy(towline_batch_t* batch);

// Works

typedef enum towline_work_state_t {
  TOWLINE_WORK_NOT_STARTED = 0,
  TOWLINE_WORK_IN_PROGRESS = 1,
  TOWLINE_WORK_COMPLETED = 2,
  TOWLINE_WORK_TIMED_OUT = 3,
  TOWLINE_WORK_ERROR = 4,
} towline_work_state_t;

typedef enum towline_work_event_t {
  TOWLINE_WORK_START = 0,  // it runs (called at once if it already runs)
  TOWLINE_WORK_END = 1,    // it has ended; once (called at once if it already has)
  TOWLINE_WORK_WAIT_PRE = 2,
  TOWLINE_WORK_WAIT_POST = 3,
} towline_work_event_t;

// Called on the thread that causes the event, without locks. Do not release the work in it.
typedef void (*towline_work_fn)(void* context, towline_work_t* work);

TOWLINE_API uint32_t towline_work_state(const towline_work_t* work);
// TOWLINE_IN_PROGRESS or the outcome.
TOWLINE_API int32_t towline_work_poll(towline_work_t* work);
// Waits for the outcome; TOWLINE_NOT_YET if timeout_ns passes first (the operation continues). Runs the
// operation itself if no thread has begun it. After a failure the last error is the operation's.
TOWLINE_API int32_t towline_work_wait(towline_work_t* work, uint64_t timeout_ns);
// Like wait, but blocks the calling thread even if the backend's wait only orders a stream.
TOWLINE_API int32_t towline_work_wait_blocking(towline_work_t* work, uint64_t timeout_ns);
// The operation's timeout.
TOWLINE_API uint64_t towline_work_timeout(const towline_work_t* work);
// The error message; "" while in progress or after success. Valid as long as the work.
TOWLINE_API const char* towline_work_error(const towline_work_t* work);
TOWLINE_API uint32_t towline_work_op(const towline_work_t* work);
// The rank whose message a recv received, once it has succeeded; TOWLINE_ANY_RANK otherwise.
TOWLINE_API int32_t towline_work_source(const towline_work_t* work);
TOWLINE_API int32_t towline_work_on(towline_work_t* work, uint32_t event, towline_work_fn function,
                                    void* context);
// Adds an owner; each owner releases the work once.
TOWLINE_API void towline_work_retain(towline_work_t* work);
// Drops an owner. The operation continues.
TOWLINE_API void towline_work_release(towline_work_t* work);

// Hooks, watchdog, flight recorder

// The argument of hooks; valid during the call.
typedef struct towline_hook_args_t {
  size_t struct_size;
  uint32_t op;  // towline_collective_op_t
  uint32_t async;
  uint64_t op_id;                    // number of the operation in this process: monotonic, from 1
  const towline_collective_t* call;  // pre, post: null for a batch; else null
  const towline_collective_options_t* options;
  towline_communicator_t* communicator;
  int32_t status;  // pre: TOWLINE_OK; post: the outcome, or TOWLINE_IN_PROGRESS if asynchronous; abort: why
  uint32_t reserved;
  towline_work_t* work;  // post: of an asynchronous operation that was issued; else null
  const char* text;      // abort: the reason
} towline_hook_args_t;

typedef enum towline_hook_kind_t {
  TOWLINE_HOOK_PRE = 0,   // before an operation is issued, on the caller's thread
  TOWLINE_HOOK_POST = 1,  // after it has been, or was refused, on the caller's thread
  TOWLINE_HOOK_ABORT =
      2,  // once when the communicator breaks, on an internal thread; must not wait for operations
  // A replay of a graph began (status TOWLINE_IN_PROGRESS) or ended (TOWLINE_OK) an operation that the graph recorded while this
  // hook was there, also by failing: the abort hook says that. On the thread that notices failures, some 10 ms later; must not
  // wait for operations. close() tells what is left. Communicators of the backend gpu on one host; for others UNSUPPORTED.
  TOWLINE_HOOK_REPLAY = 3,
} towline_hook_kind_t;

typedef void (*towline_hook_fn)(void* context, const towline_hook_args_t* args);

TOWLINE_API int32_t towline_communicator_hook(towline_communicator_t* communicator, uint32_t kind,
                                              towline_hook_fn function, void* context, towline_hook_t** hook);
// After it returns the hook's function is not running and is not called again; it may also be called from
// that function. Frees the handle.
TOWLINE_API void towline_hook_remove(towline_hook_t* hook);

// The last operations of this communicator, oldest first, as JSON in the format 2.10 of torch's flight
// recorder: {"version", "pg_config", "pg_status", "entries": [{"record_id", "process_group",
// "profiling_name", "state", "time_created_ns", ...}]}. Size convention as towline_agent_info.
TOWLINE_API int32_t towline_communicator_flight_records(towline_communicator_t* communicator, char* json,
                                                        size_t capacity, size_t* needed);
TOWLINE_API int32_t towline_communicator_flight_reset(towline_communicator_t* communicator);

// Windows

// A window is memory of every rank that other ranks put into and get from without its help. Collective over
// the communicator: every rank gives its own memory, of any size; null allocates it (zeroed). Ranks of one
// host map it: it must come from towline_memory_allocate, or be page-aligned (it is then moved onto shared
// memory in place, contents kept). Ranks of other hosts reach it through an agent of the communicator.
// TOWLINE_UNSUPPORTED, on every rank: some memory can't be shared, or some rank can't reach another's.
TOWLINE_API int32_t towline_window_create(towline_communicator_t* communicator, void* address, uint64_t bytes,
                                          towline_window_t** window);
// Collective: waits until every rank has called it, so that no rank uses the window any more.
TOWLINE_API int32_t towline_window_destroy(towline_window_t* window, uint64_t timeout_ns);
TOWLINE_API void* towline_window_address(const towline_window_t* window);  // this rank's own
TOWLINE_API uint64_t towline_window_bytes(const towline_window_t* window,
                                          int32_t rank);  // of any rank; 0: it has no memory
// The address of a rank's memory in this process; null if it is on another host (the last error says so) or
// has no memory.
TOWLINE_API void* towline_window_map_remote(const towline_window_t* window, int32_t rank);
// When it returns, the bytes are visible to `rank`, and to each rank that has seen a later signal. Between
// hosts a put, get or signal that fails breaks the communicator (TOWLINE_PEER_LOST, TOWLINE_TIMED_OUT after
// its timeout).
TOWLINE_API int32_t towline_window_put(towline_window_t* window, int32_t rank, uint64_t offset,
                                       const void* from, uint64_t bytes);
TOWLINE_API int32_t towline_window_get(towline_window_t* window, int32_t rank, uint64_t offset, void* to,
                                       uint64_t bytes);
// Adds one to the count of this rank's signals at `rank`. After waiting for it, `rank` sees all earlier puts.
TOWLINE_API int32_t towline_window_signal(towline_window_t* window, int32_t rank);
// Waits for the next signal of `rank` that was not waited for yet; TOWLINE_NOT_YET if `timeout_ns` passes first, which
// does not break the communicator.
TOWLINE_API int32_t towline_window_wait_signal(towline_window_t* window, int32_t rank, uint64_t timeout_ns);

// Backends

// Registers a backend under a name: `table` is a towline_collective_table_v1_t (plugin/collective.h) that
// stays valid until the process ends. TOWLINE_ALREADY_EXISTS; TOWLINE_UNSUPPORTED: an unknown version.
TOWLINE_API int32_t towline_collective_backend_register(const char* name, const void* table);
// Loads a backend from a library that exports `towline_collective_v1`.
TOWLINE_API int32_t towline_collective_backend_load(const char* name, const char* path);
// The known names, comma-separated; size convention as towline_agent_info.
TOWLINE_API int32_t towline_collective_backends(char* text, size_t capacity, size_t* needed);

// The operations by name: towline_collective with the members that each uses.

TOWLINE_API int32_t towline_barrier(towline_communicator_t* communicator,
                                    const towline_collective_options_t* options, towline_work_t** work);
TOWLINE_API int32_t towline_all_reduce(towline_communicator_t* communicator, const void* input, void* output,
                                       uint64_t count, uint32_t datatype, uint32_t reduction,
                                       const towline_collective_options_t* options, towline_work_t** work);
TOWLINE_API int32_t towline_reduce(towline_communicator_t* communicator, const void* input, void* output,
                                   uint64_t count, uint32_t datatype, uint32_t reduction, int32_t root,
                                   const towline_collective_options_t* options, towline_work_t** work);
TOWLINE_API int32_t towline_broadcast(towline_communicator_t* communicator, void* buffer, uint64_t count,
                                      uint32_t datatype, int32_t root,
                                      const towline_collective_options_t* options, towline_work_t** work);
// `count` elements of each rank.
TOWLINE_API int32_t towline_all_gather(towline_communicator_t* communicator, const void* input, void* output,
                                       uint64_t count, uint32_t datatype,
                                       const towline_collective_options_t* options, towline_work_t** work);
// `count` elements for each rank.
TOWLINE_API int32_t towline_reduce_scatter(towline_communicator_t* communicator, const void* input,
                                           void* output, uint64_t count, uint32_t datatype,
                                           uint32_t reduction, const towline_collective_options_t* options,
                                           towline_work_t** work);
// `count` elements for each rank.
TOWLINE_API int32_t towline_all_to_all(towline_communicator_t* communicator, const void* input, void* output,
                                       uint64_t count, uint32_t datatype,
                                       const towline_collective_options_t* options, towline_work_t** work);
TOWLINE_API int32_t towline_send(towline_communicator_t* communicator, const void* input, uint64_t count,
                                 uint32_t datatype, int32_t peer, uint64_t tag,
                                 const towline_collective_options_t* options, towline_work_t** work);
TOWLINE_API int32_t towline_recv(towline_communicator_t* communicator, void* output, uint64_t count,
                                 uint32_t datatype, int32_t peer, uint64_t tag,
                                 const towline_collective_options_t* options, towline_work_t** work);

#ifdef __cplusplus
}  // extern "C"
#endif
