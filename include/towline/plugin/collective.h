// The collective table: the functions of a communicator backend, which is built in, registered or loaded. A
// library exports `towline_collective_v1`, a function without arguments that returns its table.
//
// Life. open (collective: every rank opens) -> operations -> close. The communicator calls `perform` from one
// thread at a time, in the order in which operations were issued. It has checked the calls (known types, root
// in range, no null pointer for bytes; lists of parts and offsets as given). Messages (send, recv) are
// started, tested and released under another lock, beside `perform`. Any thread may call `abort`.
//
// Failing. perform and message_test return a status and pass the message to host->fail on the same thread. A
// failure of an accepted operation breaks the communicator: the backend tells the other ranks, and calls
// host->broken once when it learns of a failure from them.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <towline/collectives.h>
#include <towline/collectives_gpu.h>
#include <towline/plugin/sized.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TOWLINE_COLLECTIVE_MAJOR 1

typedef struct towline_collective_backend towline_collective_backend;  // one communicator's instance
typedef struct towline_collective_message towline_collective_message;  // a send or receive in progress
typedef struct towline_collective_window towline_collective_window;

typedef struct towline_collective_host_v1_t {
  size_t struct_size;
  void* context;
  // Sets the reason why the current call fails; copied. Call it on the thread of that call.
  void (*fail)(void* context, const char* text);
  // The communicator broke, and not by a call into this backend. Any thread, without locks; only the first
  // call counts.
  void (*broken)(void* context, int32_t status, const char* text);
  // The store in which ranks meet, under this communicator's prefix. Does not throw; waits until the
  // deadline.
  int32_t (*store_set)(void* context, const char* key, const void* value, size_t bytes);
  int32_t (*store_get)(void* context, const char* key, uint64_t deadline_ns, void* value, size_t capacity,
                       size_t* bytes);
  // A value by dotted key ("tuning.collectives.stage_bytes") or `fallback`; lives until the thread's next call.
  const char* (*config)(void* context, const char* key, const char* fallback);
  // One value of the environment or null; lives as above.
  const char* (*environment)(void* context, const char* name);
  // A replay of a graph began (ended 0) or ended (1) an operation that watch_replays named. Any thread, without locks;
  // also from close.
  void (*replayed)(void* context, uint64_t op_id, uint32_t op, int32_t ended);
} towline_collective_host_v1_t;
#define TOWLINE_COLLECTIVE_HOST_V1_MINIMUM TOWLINE_BYTES_THROUGH(towline_collective_host_v1_t, environment)

typedef struct towline_collective_open_args {
  size_t struct_size;
  const towline_collective_host_v1_t* host;  // outlives the backend
  const char* name;
  int32_t rank;
  int32_t size;
  uint64_t deadline_ns;  // CLOCK_MONOTONIC
  uint32_t flags;        // TOWLINE_COMMUNICATOR_*
  uint32_t reserved;
  const char* const* hints;
  // How messages for people number the ranks; null: from 0.
  const int32_t* called;
} towline_collective_open_args;

// A step of an operation of ranks on several hosts: the GPUs of a host work together, and processors move data between
// hosts (hops).
#define TOWLINE_STEP_CALL 0   // `call`, among the ranks of this backend
#define TOWLINE_STEP_MOVE 1   // `bytes` from `from` to `to`
#define TOWLINE_STEP_POST 2   // gives `words` to the function of hops_open, and goes on
#define TOWLINE_STEP_AWAIT 3  // waits until that function has returned once more, or did so ahead
#define TOWLINE_STEP_NORM \
  4  // `from` is a towline_collective_norm_t: what issue_norm does after its all_reduce
#define TOWLINE_STEP_WORDS 60
typedef struct towline_collective_step_t {
  uint32_t kind;    // TOWLINE_STEP_*
  uint32_t strand;  // of POST and AWAIT; the first step's is that of the whole operation
  const towline_collective_t* call;
  void* to;
  const void* from;
  uint64_t bytes;
  uint64_t words[TOWLINE_STEP_WORDS];
} towline_collective_step_t;

typedef struct towline_collective_table_v1_t {
  size_t struct_size;
  uint32_t major;  // TOWLINE_COLLECTIVE_MAJOR
  uint32_t reserved;
  const char* version;  // of the backend, for people
  int32_t (*open)(const towline_collective_open_args* args, towline_collective_backend** backend);
  // Called when no operation is in progress, or after abort. Tells the other ranks that this one leaves.
  void (*close)(towline_collective_backend* backend);
  // Everything but messages; `number` counts the operations of the communicator from 0. Blocks.
  int32_t (*perform)(towline_collective_backend* backend, const towline_collective_t* call, uint64_t number,
                     uint64_t deadline_ns);
  // Starts a send or receive: TOWLINE_OK and a message to test. Does not block.
  int32_t (*message_start)(towline_collective_backend* backend, const towline_collective_t* call,
                           towline_collective_message** message);
  // Makes progress on all messages; TOWLINE_IN_PROGRESS or this one's outcome.
  int32_t (*message_test)(towline_collective_backend* backend, towline_collective_message* message);
  void (*message_release)(towline_collective_backend* backend, towline_collective_message* message);
  // Waits, without the lock, until testing may give a new result, at most until then. May return early.
  void (*message_wait)(towline_collective_backend* backend, uint64_t until_ns);
  // Any thread. Breaks the communicator on every rank; calls in progress return soon.
  void (*abort)(towline_collective_backend* backend, int32_t status, const char* text);
  // A JSON object for people.
  int32_t (*describe)(towline_collective_backend* backend, char* json, size_t capacity, size_t* needed);

  // Optional from here on: null where there are none.
  //
  // Windows. window_open and window_close are called as perform is.
  int32_t (*window_open)(towline_collective_backend* backend, void* address, uint64_t bytes, uint64_t number,
                         uint64_t deadline_ns, towline_collective_window** window);
  int32_t (*window_close)(towline_collective_window* window, uint64_t number, uint64_t deadline_ns);
  // A rank's memory in this process and its size; null address if it is not mapped here. Any thread.
  int32_t (*window_map)(towline_collective_window* window, int32_t rank, void** address, uint64_t* bytes);
  int32_t (*window_put)(towline_collective_window* window, int32_t rank, uint64_t offset, const void* from,
                        uint64_t bytes);
  int32_t (*window_get)(towline_collective_window* window, int32_t rank, uint64_t offset, void* to,
                        uint64_t bytes);
  int32_t (*window_signal)(towline_collective_window* window, int32_t rank);
  int32_t (*window_wait_signal)(towline_collective_window* window, int32_t rank, uint64_t deadline_ns);

  // The rank that a message of which message_test gave TOWLINE_OK came from. Null: no receives from
  // TOWLINE_ANY_RANK.
  int32_t (*message_source)(towline_collective_backend* backend, towline_collective_message* message);

  // Puts an operation, or a send or receive, into a stream of the GPU that the backend uses, and returns; also
  // while the stream is being captured. Called as perform is; waits that the operation makes on the GPU end after
  // `timeout_ns`. An error means that nothing was enqueued. Backends with it apply PREMUL_SUM's factor themselves,
  // in perform as well.
  int32_t (*issue)(towline_collective_backend* backend, const towline_collective_t* call, uint64_t number,
                   uint64_t timeout_ns, void* stream);
  // Like issue, but on a stream of the backend's: after what `stream` holds now, and beside what comes later. Gives a
  // message, which is tested and released as others are. One that was captured has ended when its capture is over.
  int32_t (*issue_beside)(towline_collective_backend* backend, const towline_collective_t* call,
                          uint64_t number, uint64_t timeout_ns, void* stream,
                          towline_collective_message** message);
  // Orders later work of the stream after such a message. Any thread.
  int32_t (*message_precede)(towline_collective_backend* backend, towline_collective_message* message,
                             void* stream);

  // begin 1, then message_start of several messages, then begin 0: these do not wait for one another. Null: none
  // do. Called as message_start is.
  int32_t (*messages_together)(towline_collective_backend* backend, int32_t begin);

  // Windows in memory of GPUs. Puts an operation into a stream; the call was checked. An error means that nothing was
  // enqueued. Any thread.
  int32_t (*window_issue)(towline_collective_window* window, const towline_window_call_t* call,
                          uint64_t timeout_ns, void* stream);
  // What kernels need of a window: towline::device::Symmetric, as bytes. Any thread.
  int32_t (*window_symmetric)(towline_collective_window* window, void* symmetric, size_t bytes);

  // As issue, for an all_reduce with an addition and RMSNorm; the norm was checked. Counts as one operation.
  int32_t (*issue_norm)(towline_collective_backend* backend, const towline_collective_norm_t* norm,
                        uint64_t number, uint64_t timeout_ns, void* stream);

  // Hops. hops_open, at most once: memory of so many bytes that the GPU and processors reach, and the function that
  // carries hops out. It is called on a thread of the backend's, for one hop after another, in the order in which
  // streams come to them. Negative: the hop failed, and its caller aborts the backend.
  int32_t (*hops_open)(towline_collective_backend* backend, uint64_t bytes,
                       int32_t (*run)(void* context, const uint64_t* words), void* context, void** memory);
  // As issue (message null) and issue_beside, as one operation. At most two POSTs come before their AWAITs.
  int32_t (*issue_steps)(towline_collective_backend* backend, const towline_collective_step_t* steps,
                         size_t count, uint64_t number, uint64_t timeout_ns, void* stream,
                         towline_collective_message** message);
  // As perform.
  int32_t (*perform_steps)(towline_collective_backend* backend, const towline_collective_step_t* steps,
                           size_t count, uint64_t number, uint64_t deadline_ns);
  // One more strand of hops: hops_open makes strand 0. Operations of a strand are in order with one another only, and its
  // function is called on a thread of its own. The first `ahead` AWAITs of a strand wait for nothing. Any thread.
  int32_t (*strand_open)(towline_collective_backend* backend, uint64_t bytes, uint32_t ahead,
                         int32_t (*run)(void* context, const uint64_t* words), void* context, void** memory,
                         uint32_t* strand);
  // As message_start: an operation of a strand, without CALLs. An error gives no message. Any thread.
  int32_t (*start_steps)(towline_collective_backend* backend, const towline_collective_step_t* steps,
                         size_t count, towline_collective_message** message);

  // Takes in at once what a GPU has reported: negative if the communicator is broken. An operation whose stream was waited
  // for has failed if this says so, and else has not. Any thread.
  int32_t (*look)(towline_collective_backend* backend);

  // The next operation that is put into a stream is `op_id`. If a graph records it, host->replayed is told of its replays.
  // Called as issue is, right before it.
  void (*watch_replays)(towline_collective_backend* backend, uint64_t op_id);
} towline_collective_table_v1_t;
#define TOWLINE_COLLECTIVE_TABLE_V1_MINIMUM TOWLINE_BYTES_THROUGH(towline_collective_table_v1_t, describe)

typedef const towline_collective_table_v1_t* (*towline_collective_v1_fn)(void);

#ifdef __cplusplus
}  // extern "C"
#endif
