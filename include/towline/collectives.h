// Collectives: a communicator among ranks (processes, or threads of one), its operations, works and windows.
//
//   towline_communicator_t* world;
//   towline_communicator_create(NULL, &world);  // rank and size from torchrun, MPI or Slurm
//   // Done when it returns:
//   towline_all_reduce(world, in, out, 1024, TOWLINE_FLOAT32, TOWLINE_SUM, NULL, NULL);
//   // Goes on by itself:
//   towline_work_t* work;
//   towline_all_reduce(world, in, out, 1024, TOWLINE_FLOAT32, TOWLINE_SUM, NULL, &work);
//   towline_work_wait(work, TOWLINE_FOREVER);
//   towline_work_release(work);
//
// Conventions are those of towline.h. Every rank calls the same operations of one communicator in the same
// order, with the same sizes, types, reduction and root. If one rank differs, all ranks get the same error
// (TOWLINE_MISMATCH). Counts are in elements. Operations write only their outputs. Input and output may be the
// same memory where their parts have the same place (all_reduce, reduce, broadcast; the own part of a gather
// or scatter); otherwise they must not overlap. Buffers belong to the operation until it has ended.
//
// Failures. A communicator breaks as a whole: when one rank is lost, times out, aborts or disagrees, every
// operation in progress and every later one, on every rank, ends with the same status and sentence
// (towline_communicator_error). From then on no rank touches the buffers, and a new communicator may be made
// at once. Arguments that one rank can see to be wrong (TOWLINE_INVALID_ARGUMENT and the like) break nothing
// and take no part in the order.
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

// Types of 16 and 8 bits are accumulated in float32 and rounded once. Ranks are taken in their order, so the
// result is the same to the bit on every rank and in every run. MIN and MAX of a NaN are NaN. Integers wrap
// around. Bools: SUM, MAX and BOR are "any", PRODUCT, MIN and BAND "all".
typedef enum towline_reduction_t {
  TOWLINE_SUM = 0,
  TOWLINE_PRODUCT = 1,
  TOWLINE_MIN = 2,
  TOWLINE_MAX = 3,
  TOWLINE_BAND = 4,  // bitwise; integers and bools
  TOWLINE_BOR = 5,
  TOWLINE_BXOR = 6,
  TOWLINE_AVG = 7,         // the sum divided by the number of ranks; integers: towards zero; no bools
  TOWLINE_PREMUL_SUM = 8,  // the sum of inputs times each rank's own `factor`; no bools
} towline_reduction_t;

// "sum"; "unknown".
TOWLINE_API const char* towline_reduction_name(uint32_t reduction);

typedef enum towline_collective_op_t {
  TOWLINE_OP_BARRIER = 0,
  TOWLINE_OP_ALL_REDUCE = 1,
  TOWLINE_OP_REDUCE = 2,
  TOWLINE_OP_BROADCAST = 3,
  TOWLINE_OP_ALL_GATHER = 4,
  TOWLINE_OP_ALL_GATHER_V = 5,
  TOWLINE_OP_REDUCE_SCATTER = 6,
  TOWLINE_OP_REDUCE_SCATTER_V = 7,
  TOWLINE_OP_GATHER = 8,
  TOWLINE_OP_SCATTER = 9,
  TOWLINE_OP_ALL_TO_ALL = 10,
  TOWLINE_OP_ALL_TO_ALL_V = 11,
  TOWLINE_OP_SEND = 12,
  TOWLINE_OP_RECV = 13,
  TOWLINE_OP_BATCH = 14,
} towline_collective_op_t;

// "all_reduce"; "unknown".
TOWLINE_API const char* towline_collective_op_name(uint32_t op);

// Bootstrap

// Where ranks find one another: a store of small values under keys, such as torch's. Calls come from any
// thread, one at a time. `get` waits until the key is there, `timeout_ns` at most, then writes at most
// `capacity` bytes and the whole size (asked again with more room where it was too small).
typedef struct towline_collective_store_t {
  size_t struct_size;
  void* context;
  int32_t (*set)(void* context, const char* key, const void* value, size_t bytes);
  int32_t (*get)(void* context, const char* key, uint64_t timeout_ns, void* value, size_t capacity,
                 size_t* bytes);
  void (*release)(void* context);  // the communicator, and all split from it, are gone; may be null
} towline_collective_store_t;

enum {                                     // towline_communicator_options_t.flags
  TOWLINE_COMMUNICATOR_ABORT_PROCESS = 1,  // end the process (SIGABRT) when an operation fails or times out
  TOWLINE_COMMUNICATOR_NO_SHARED_MEMORY = 2,  // talk over TCP on one host, too
};

typedef struct towline_communicator_options_t {
  size_t struct_size;
  const char* name;     // the same on every rank; null: "world"
  const char* backend;  // "cpu", "fake", or one that was registered; null: "cpu"
  int32_t rank;         // used where size > 0; else found in the environment
  int32_t size;
  // Where to meet: "tcp://host:port" (rank 0 serves there; torch's TCPStore is understood as well),
  // "file:/path" (a folder that all ranks see), a directory's address ("etcd://.."; needs `agent`), "env"
  // (MASTER_ADDR and MASTER_PORT). null: "env". Ignored where `store` is given.
  const char* bootstrap;
  const towline_collective_store_t* store;
  towline_agent_t* agent;    // for a directory
  uint64_t timeout_ns;       // of operations that name none, and of forming; 0: 600 s
  uint32_t flags;            // TOWLINE_COMMUNICATOR_*
  uint32_t flight_records;   // operations remembered; 0: 2000
  const char* config;        // TOML text over environment and file: [collectives] ...
  const char* const* hints;  // key, value, key, value, ..., null; kept for info; unknown ones do no harm
  uint64_t reserved[4];
} towline_communicator_options_t;

// Rank and size as the environment says: TOWLINE_RANK/TOWLINE_SIZE, TORCHCOMM_RANK/SIZE, Open MPI
// (OMPI_COMM_WORLD_*), PMI, PALS, Slurm, then RANK/WORLD_SIZE. `method`: "auto", "torchrun", "mpi", "pals",
// "slurm"; null: TORCHCOMM_BOOTSTRAP_RANKSIZE_QUERY_METHOD, else "auto". TOWLINE_NOT_FOUND: nothing is set.
TOWLINE_API int32_t towline_collective_environment(const char* method, int32_t* rank, int32_t* size);

// Communicators

// Collective: returns when all ranks have come. TOWLINE_TIMED_OUT names those that have not.
TOWLINE_API int32_t towline_communicator_create(const towline_communicator_options_t* options,
                                                towline_communicator_t** communicator);
// Lets operations in progress end (their timeouts hold), tells the others that it is going, frees the handle.
// Not collective. After towline_communicator_abort it does not wait. TOWLINE_BUSY on a thread that is in one
// of its hooks or works' functions, and it stays: do it once they have returned.
TOWLINE_API int32_t towline_communicator_destroy(towline_communicator_t* communicator);
// Waits until everything issued on this rank has ended; the communicator takes no more. Idempotent.
// TOWLINE_BUSY as towline_communicator_destroy.
TOWLINE_API int32_t towline_communicator_finalize(towline_communicator_t* communicator);
TOWLINE_API int32_t towline_communicator_rank(const towline_communicator_t* communicator);
TOWLINE_API int32_t towline_communicator_size(const towline_communicator_t* communicator);
TOWLINE_API const char* towline_communicator_name(const towline_communicator_t* communicator);
TOWLINE_API const char* towline_communicator_backend(const towline_communicator_t* communicator);
// Backend, ranks with hosts, NUMA nodes and processes, who is reached how, thresholds, hints: JSON, size
// convention as towline_agent_info.
TOWLINE_API int32_t towline_communicator_info(towline_communicator_t* communicator, char* json,
                                              size_t capacity, size_t* needed);
// For operations issued from now on.
TOWLINE_API int32_t towline_communicator_set_timeout(towline_communicator_t* communicator,
                                                     uint64_t timeout_ns);
TOWLINE_API uint64_t towline_communicator_timeout(const towline_communicator_t* communicator);
TOWLINE_API int32_t towline_communicator_set_hint(towline_communicator_t* communicator, const char* key,
                                                  const char* value);

// Collective over the parent: every rank calls it, with the ranks (of the parent) of the group it will be in,
// itself among them, in the order of their new ranks; members of one group give the same list. A rank that
// will be in none gives count 0 and gets null. `name` null: the parent's, with the number of the split.
// timeout_ns 0: the parent's. TOWLINE_INVALID_ARGUMENT: a list without the caller, a rank twice or out of
// range.
TOWLINE_API int32_t towline_communicator_split(towline_communicator_t* parent, const int32_t* ranks,
                                               size_t count, const char* name, uint64_t timeout_ns,
                                               towline_communicator_t** communicator);

// Breaks the communicator on every rank, within a second. `reason` may be null.
TOWLINE_API int32_t towline_communicator_abort(towline_communicator_t* communicator, const char* reason);
// TOWLINE_OK, or why it broke (TOWLINE_CANCELLED after an abort, TOWLINE_PEER_LOST, TOWLINE_TIMED_OUT,
// TOWLINE_MISMATCH, TOWLINE_CLOSED, TOWLINE_FORKED); `text` receives the sentence, size convention as
// towline_agent_info (null, 0, null: only the status).
TOWLINE_API int32_t towline_communicator_error(const towline_communicator_t* communicator, char* text,
                                               size_t capacity, size_t* needed);

// Operations

// One operation. Which members count:
//
//   op                  input                 output                count            also
//   barrier             -                     -                     -
//   all_reduce          count                 count                 elements         reduction
//   reduce              count                 count, at root        elements         reduction, root
//   broadcast           count, at root        count (root: unused if null or input)   elements   root
//   all_gather          count                 size * count          of one rank
//   all_gather_v        output_counts[rank]   their sum             -                output_counts
//   reduce_scatter      size * count          count                 of one rank      reduction
//   reduce_scatter_v    sum of input_counts   input_counts[rank]    -                reduction, input_counts
//   gather              count                 size * count, at root of one rank      root
//   scatter             size * count, at root count                 of one rank      root
//   all_to_all          size * count          size * count          for one rank
//   all_to_all_v        sum of input_counts   sum of output_counts  -                input_counts,
//   output_counts send                count                 -                     elements         root (the
//   peer), tag recv                -                     count                 elements         root (the
//   peer), tag
//
// Whatever has one part a rank may be given as lists of parts instead, `inputs` or `outputs` (size pointers,
// part i of rank i), which are then used in place of `input` or `output`. Parts lie one behind the other
// unless input_offsets/output_offsets (in elements, size entries) say where. Broadcast: with output null or
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

// The root of a recv: takes the first message with its tag from whichever rank; towline_work_source tells
// which. The types of a send and its recv have to be the same.
#define TOWLINE_ANY_RANK (-1)

typedef struct towline_collective_options_t {
  size_t struct_size;
  uint64_t timeout_ns;       // 0: the communicator's; TOWLINE_FOREVER: none
  const char* const* hints;  // as in the communicator's options; handed to hooks and backends
  // Asked now and then while the calling thread waits for the operation (not for a work), from 50 ms on:
  // other than 0 ends the operation, and breaks the communicator with TOWLINE_CANCELLED. Null: nobody is
  // asked.
  int32_t (*interrupted)(void* context);
  void* interrupt_context;
} towline_collective_options_t;

// Does it, or with `work` starts it. Without: returns its outcome. With: TOWLINE_OK, and the work must be
// released; the arrays of counts, offsets and pointers are copied, buffers are not. Operations issued without
// waiting run one after the other, in the order of their issue, beside the application; sends and receives
// run beside them, in any order, those between one pair with one tag in theirs. What a work's function issues
// when an operation in that order ends is done at once, before the next one that was issued earlier.
TOWLINE_API int32_t towline_collective(towline_communicator_t* communicator, const towline_collective_t* call,
                                       const towline_collective_options_t* options, towline_work_t** work);

// A batch of sends and receives that are issued together, as one work, and can't wait for one another.
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
  TOWLINE_WORK_START = 0,  // it runs (called at once when it does already)
  TOWLINE_WORK_END = 1,    // it has ended; once (called at once when it has)
  TOWLINE_WORK_WAIT_PRE = 2,
  TOWLINE_WORK_WAIT_POST = 3,
} towline_work_event_t;

// Called on the thread that makes it happen, with nothing held. The work must not be released in it.
typedef void (*towline_work_fn)(void* context, towline_work_t* work);

TOWLINE_API uint32_t towline_work_state(const towline_work_t* work);
// TOWLINE_IN_PROGRESS or the outcome.
TOWLINE_API int32_t towline_work_poll(towline_work_t* work);
// Waits for the outcome; TOWLINE_IN_PROGRESS when timeout_ns passed first (the operation goes on). Runs the
// operation itself where nobody has begun it. After a failure the last error is the operation's.
TOWLINE_API int32_t towline_work_wait(towline_work_t* work, uint64_t timeout_ns);
// As wait; where a backend's wait only orders a stream, this one holds up the calling thread.
TOWLINE_API int32_t towline_work_wait_blocking(towline_work_t* work, uint64_t timeout_ns);
// The operation's timeout.
TOWLINE_API uint64_t towline_work_timeout(const towline_work_t* work);
// Why it failed; "" while in progress or after success. Lives as long as the work.
TOWLINE_API const char* towline_work_error(const towline_work_t* work);
TOWLINE_API uint32_t towline_work_op(const towline_work_t* work);
// The rank that a recv took its message from, once it has ended well; TOWLINE_ANY_RANK for all else.
TOWLINE_API int32_t towline_work_source(const towline_work_t* work);
TOWLINE_API int32_t towline_work_on(towline_work_t* work, uint32_t event, towline_work_fn function,
                                    void* context);
// One more owner, for those that keep it beside others.
TOWLINE_API void towline_work_retain(towline_work_t* work);
// The operation goes on by itself.
TOWLINE_API void towline_work_release(towline_work_t* work);

// Hooks, watchdog, flight recorder

// What pre hooks see; lives for the call.
typedef struct towline_hook_args_t {
  size_t struct_size;
  uint32_t op;  // towline_collective_op_t
  uint32_t async;
  uint64_t op_id;                    // counts through the process's operations: monotonic, from 1
  const towline_collective_t* call;  // null for a batch
  const towline_collective_options_t* options;
  towline_communicator_t* communicator;
  int32_t status;  // post: the outcome, or TOWLINE_IN_PROGRESS of one issued without waiting; else TOWLINE_OK
  uint32_t reserved;
  towline_work_t* work;  // post: of one issued without waiting; else null
  const char* text;      // abort: why
} towline_hook_args_t;

typedef enum towline_hook_kind_t {
  TOWLINE_HOOK_PRE = 0,   // before an operation is issued, on the caller's thread
  TOWLINE_HOOK_POST = 1,  // after it has been, on the caller's thread
  TOWLINE_HOOK_ABORT =
      2,  // once when the communicator breaks, on a thread of ours; must not wait for operations
} towline_hook_kind_t;

typedef void (*towline_hook_fn)(void* context, const towline_hook_args_t* args);

TOWLINE_API int32_t towline_communicator_hook(towline_communicator_t* communicator, uint32_t kind,
                                              towline_hook_fn function, void* context, towline_hook_t** hook);
// When it returns the function is no longer called, unless it is the caller itself. Frees the handle.
TOWLINE_API void towline_hook_remove(towline_hook_t* hook);

// The last operations of this communicator, oldest first, as JSON in the format 2.10 of torch's flight
// recorder: {"version", "pg_config", "pg_status", "entries": [{"record_id", "process_group",
// "profiling_name", "state", "time_created_ns", ...}]}. Size convention as towline_agent_info.
TOWLINE_API int32_t towline_communicator_flight_records(towline_communicator_t* communicator, char* json,
                                                        size_t capacity, size_t* needed);
TOWLINE_API int32_t towline_communicator_flight_reset(towline_communicator_t* communicator);

// Windows

// Memory of every rank that others put into and get from without its help. Collective over the communicator:
// every rank brings its own memory, of any size; null has it allocated (zeroed). Ranks of one host map it: it
// is of towline_memory_allocate, or page-aligned (it is then moved onto shared memory in place, contents
// kept). Ranks of other hosts reach it through an agent of the communicator's. TOWLINE_UNSUPPORTED, on every
// rank: some memory can't be shared, or some rank can't reach another's.
TOWLINE_API int32_t towline_window_create(towline_communicator_t* communicator, void* address, uint64_t bytes,
                                          towline_window_t** window);
// Collective: waits until every rank is here, so that nobody uses it any more.
TOWLINE_API int32_t towline_window_destroy(towline_window_t* window, uint64_t timeout_ns);
TOWLINE_API void* towline_window_address(const towline_window_t* window);  // one's own
TOWLINE_API uint64_t towline_window_bytes(const towline_window_t* window,
                                          int32_t rank);  // of any rank; 0: none
// Where a rank's memory lies in this process; null when it is on another host (the last error says so) or has
// none.
TOWLINE_API void* towline_window_map_remote(const towline_window_t* window, int32_t rank);
// Bytes are there for `rank`, and whoever saw a later signal, when it returns. Between hosts a put, get or
// signal that fails breaks the communicator (TOWLINE_PEER_LOST, TOWLINE_TIMED_OUT after its timeout).
TOWLINE_API int32_t towline_window_put(towline_window_t* window, int32_t rank, uint64_t offset,
                                       const void* from, uint64_t bytes);
TOWLINE_API int32_t towline_window_get(towline_window_t* window, int32_t rank, uint64_t offset, void* to,
                                       uint64_t bytes);
// Adds one to what `rank` counts of us; whoever waits for it sees all that we put before.
TOWLINE_API int32_t towline_window_signal(towline_window_t* window, int32_t rank);
// Waits for the next signal of `rank` that was not waited for yet. Breaks nothing when it times out.
TOWLINE_API int32_t towline_window_wait_signal(towline_window_t* window, int32_t rank, uint64_t timeout_ns);

// Backends

// Makes a backend known under a name: `table` is a towline_collective_table_v1_t (plugin/collective.h) that
// lives as long as the process. TOWLINE_ALREADY_EXISTS; TOWLINE_UNSUPPORTED: a version not known here.
TOWLINE_API int32_t towline_collective_backend_register(const char* name, const void* table);
// Loads one from a library that exports `towline_collective_v1`.
TOWLINE_API int32_t towline_collective_backend_load(const char* name, const char* path);
// The names known, comma-separated; size convention as towline_agent_info.
TOWLINE_API int32_t towline_collective_backends(char* text, size_t capacity, size_t* needed);

#ifdef __cplusplus
}  // extern "C"
#endif

// The operations by name, for C

#ifdef __cplusplus
#define TOWLINE_COLLECTIVE_ZERO_ \
  {}
#else
#define TOWLINE_COLLECTIVE_ZERO_ \
  { 0 }
#endif
#define TOWLINE_COLLECTIVE_CALL_(op_, datatype_)        \
  towline_collective_t call = TOWLINE_COLLECTIVE_ZERO_; \
  call.struct_size = sizeof call;                       \
  call.op = (op_);                                      \
  call.datatype = (datatype_)

static inline int32_t towline_barrier(towline_communicator_t* communicator,
                                      const towline_collective_options_t* options, towline_work_t** work) {
  TOWLINE_COLLECTIVE_CALL_(TOWLINE_OP_BARRIER, TOWLINE_UINT8);
  return towline_collective(communicator, &call, options, work);
}

static inline int32_t towline_all_reduce(towline_communicator_t* communicator, const void* input,
                                         void* output, uint64_t count, uint32_t datatype, uint32_t reduction,
                                         const towline_collective_options_t* options, towline_work_t** work) {
  TOWLINE_COLLECTIVE_CALL_(TOWLINE_OP_ALL_REDUCE, datatype);
  call.input = input;
  call.output = output;
  call.count = count;
  call.reduction = reduction;
  return towline_collective(communicator, &call, options, work);
}

static inline int32_t towline_reduce(towline_communicator_t* communicator, const void* input, void* output,
                                     uint64_t count, uint32_t datatype, uint32_t reduction, int32_t root,
                                     const towline_collective_options_t* options, towline_work_t** work) {
  TOWLINE_COLLECTIVE_CALL_(TOWLINE_OP_REDUCE, datatype);
  call.input = input;
  call.output = output;
  call.count = count;
  call.reduction = reduction;
  call.root = root;
  return towline_collective(communicator, &call, options, work);
}

static inline int32_t towline_broadcast(towline_communicator_t* communicator, void* buffer, uint64_t count,
                                        uint32_t datatype, int32_t root,
                                        const towline_collective_options_t* options, towline_work_t** work) {
  TOWLINE_COLLECTIVE_CALL_(TOWLINE_OP_BROADCAST, datatype);
  call.input = buffer;
  call.output = buffer;
  call.count = count;
  call.root = root;
  return towline_collective(communicator, &call, options, work);
}

// `count` elements of each rank.
static inline int32_t towline_all_gather(towline_communicator_t* communicator, const void* input,
                                         void* output, uint64_t count, uint32_t datatype,
                                         const towline_collective_options_t* options, towline_work_t** work) {
  TOWLINE_COLLECTIVE_CALL_(TOWLINE_OP_ALL_GATHER, datatype);
  call.input = input;
  call.output = output;
  call.count = count;
  return towline_collective(communicator, &call, options, work);
}

// `count` elements for each rank.
static inline int32_t towline_reduce_scatter(towline_communicator_t* communicator, const void* input,
                                             void* output, uint64_t count, uint32_t datatype,
                                             uint32_t reduction, const towline_collective_options_t* options,
                                             towline_work_t** work) {
  TOWLINE_COLLECTIVE_CALL_(TOWLINE_OP_REDUCE_SCATTER, datatype);
  call.input = input;
  call.output = output;
  call.count = count;
  call.reduction = reduction;
  return towline_collective(communicator, &call, options, work);
}

// `count` elements for each rank.
static inline int32_t towline_all_to_all(towline_communicator_t* communicator, const void* input,
                                         void* output, uint64_t count, uint32_t datatype,
                                         const towline_collective_options_t* options, towline_work_t** work) {
  TOWLINE_COLLECTIVE_CALL_(TOWLINE_OP_ALL_TO_ALL, datatype);
  call.input = input;
  call.output = output;
  call.count = count;
  return towline_collective(communicator, &call, options, work);
}

static inline int32_t towline_send(towline_communicator_t* communicator, const void* input, uint64_t count,
                                   uint32_t datatype, int32_t peer, uint64_t tag,
                                   const towline_collective_options_t* options, towline_work_t** work) {
  TOWLINE_COLLECTIVE_CALL_(TOWLINE_OP_SEND, datatype);
  call.input = input;
  call.count = count;
  call.root = peer;
  call.tag = tag;
  return towline_collective(communicator, &call, options, work);
}

static inline int32_t towline_recv(towline_communicator_t* communicator, void* output, uint64_t count,
                                   uint32_t datatype, int32_t peer, uint64_t tag,
                                   const towline_collective_options_t* options, towline_work_t** work) {
  TOWLINE_COLLECTIVE_CALL_(TOWLINE_OP_RECV, datatype);
  call.output = output;
  call.count = count;
  call.root = peer;
  call.tag = tag;
  return towline_collective(communicator, &call, options, work);
}

#undef TOWLINE_COLLECTIVE_CALL_
#undef TOWLINE_COLLECTIVE_ZERO_
