// Collectives in the order of a GPU's streams, and in CUDA graphs: communicators of the backend "gpu".
//
//   towline_collective_t call = {.struct_size = sizeof call, .op = TOWLINE_COLLECTIVE_ALL_REDUCE, ...};
//   towline_collective_issue(world, &call, NULL, stream);  // returns at once
//
// Buffers are memory of the communicator's GPU, or pinned host memory. docs/gpu-collectives.md has the rules.
#pragma once

#include <towline/collectives.h>

#ifdef __cplusplus
extern "C" {
#endif

// Puts the operation, or a send or receive, into a stream (CUstream or cudaStream_t) of the communicator's GPU and
// returns. It runs after all earlier work of the stream and before all later work. While the stream is being
// captured it becomes part of the graph, and runs at each replay: the same number of times, in the same order, on
// every rank. Outside of graphs, operations of one communicator run in the order of issue whichever streams
// they are in.
//
// TOWLINE_OK means that it is enqueued. If it fails later (a rank that does not come within the timeout, ranks that
// disagree), the stream goes on, the outputs are undefined, and towline_communicator_error gives the reason.
// TOWLINE_UNSUPPORTED: the backend has no operations on streams. TOWLINE_INVALID_ARGUMENT: the stream or a buffer is
// not of this GPU; nothing was enqueued.
TOWLINE_API int32_t towline_collective_issue(towline_communicator_t* communicator,
                                             const towline_collective_t* call,
                                             const towline_collective_options_t* options, void* stream);

// all_reduce (a sum), then what decoding engines do with its result: `residual` becomes the result plus itself, and `output`
// RMSNorm of that, row by row: residual / sqrt(mean of its squares + epsilon) * weight.
typedef struct towline_collective_norm_t {
  size_t struct_size;
  uint32_t datatype;  // TOWLINE_FLOAT32, TOWLINE_FLOAT16 or TOWLINE_BFLOAT16
  float epsilon;
  uint64_t rows;
  uint64_t width;      // elements of a row
  const void* input;   // rows * width elements, as residual and output
  void* residual;      // the same on every rank. Null: the result itself is normalised
  const void* weight;  // width elements. Null: ones
  void* output;        // may be input
} towline_collective_norm_t;

// Enqueues it as towline_collective_issue enqueues the all_reduce. The residual gets the bits of the steps one by one, with a
// rounding to the type after each; outputs are the same on every rank, and may differ from the steps' by the order in which a
// row's squares are added. Ranks must agree on everything but addresses and the weight's values.
// TOWLINE_UNSUPPORTED: the backend has none; use an all_reduce.
TOWLINE_API int32_t towline_collective_issue_norm(towline_communicator_t* communicator,
                                                  const towline_collective_norm_t* norm,
                                                  const towline_collective_options_t* options, void* stream);

// As towline_collective_issue, on a stream of the communicator's: the operation runs after what `stream` holds now and
// beside what comes later. `work` ends when the operation has; it must be released. Sends and receives run beside
// one another, too. In a capture, call towline_work_wait_on with a captured stream before the capture ends.
TOWLINE_API int32_t towline_collective_issue_beside(towline_communicator_t* communicator,
                                                    const towline_collective_t* call,
                                                    const towline_collective_options_t* options, void* stream,
                                                    towline_work_t** work);
// Orders later work of `stream` after the operation, and returns without waiting. A failure of the operation is returned
// if it is known by then. TOWLINE_UNSUPPORTED: the work is of no operation on a stream.
TOWLINE_API int32_t towline_work_wait_on(towline_work_t* work, void* stream);

// Windows in memory of GPUs: of a communicator of the backend "gpu", towline_window_create takes memory of its GPU or
// allocates it. Memory of a pool (towline_gpu_malloc in the library libtowline_collectives_gpu.so) is mapped by all ranks as
// it is; other memory only by ranks of the same process and GPU.
typedef enum towline_window_op_t {
  TOWLINE_WINDOW_PUT = 0,          // from `address` to the rank's memory
  TOWLINE_WINDOW_GET = 1,          // from the rank's memory to `address`
  TOWLINE_WINDOW_SIGNAL = 2,       // after what the stream put before
  TOWLINE_WINDOW_WAIT_SIGNAL = 3,  // later work of the stream comes after the rank's next signal
} towline_window_op_t;

typedef struct towline_window_call_t {
  size_t struct_size;
  uint32_t op;  // towline_window_op_t
  int32_t rank;
  uint64_t offset;
  void* address;
  uint64_t bytes;
  uint64_t channel;  // of signals: a wait takes the signals of its own channel only. Below 64
} towline_window_call_t;

// Puts an operation of a window into a stream of the communicator's GPU and returns; also while the stream is captured.
// A signal that does not come within the communicator's timeout breaks the communicator. TOWLINE_UNSUPPORTED: the window is
// not in memory of a GPU.
TOWLINE_API int32_t towline_window_issue(towline_window_t* window, const towline_window_call_t* call,
                                         uint64_t timeout_ns, void* stream);
// What kernels need of a window: writes a towline::device::Symmetric (towline/device/symmetric.cuh), `bytes` of which must be
// its size. All slots but the last are the application's; they count from 0.
TOWLINE_API int32_t towline_window_symmetric(towline_window_t* window, void* symmetric, size_t bytes);

#ifdef __cplusplus
}  // extern "C"
#endif
