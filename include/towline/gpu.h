// Transfers in the order of a GPU's streams, and in CUDA graphs, and their memory for code on a GPU. Only for transfers that the backend "cuda"
// moves in one part (workers 1); docs/gpu.md lists them.
//
// `stream` is a CUstream or cudaStream_t of the GPU that moves the bytes (the transfer's own vram, see
// docs/gpu.md), of its primary context; null is that GPU's default stream. No call here waits for a GPU.
#pragma once

#include <towline/towline.h>

#ifdef __cplusplus
extern "C" {
#endif

// Posts the transfer as work of the stream: the bytes move after all earlier work of the stream and before
// all later work. The outcome, notice, deadline (counted from here) and fence are those of any post. If the
// post ends before the stream reaches it, the transfer moves nothing and is fenced at once. The stream itself
// continues in any case, so check the outcome.
//
// Returns as towline_transfer_post, with one difference: TOWLINE_OK means that the stream is being captured
// and the transfer is now part of the graph. Then nothing is posted; the bytes move each time the graph is
// replayed (see towline_transfer_replays). A transfer with a notice or counter can't be captured
// (TOWLINE_UNSUPPORTED). TOWLINE_AGAIN: also while the connection is being made.
TOWLINE_API int32_t towline_transfer_post_on(towline_transfer_t* transfer, void* stream);
// Orders later work of the stream after the transfer's last post: after its bytes have moved, or at once if
// that post ended without moving them. While the stream is being captured: after a transfer that was captured
// in the same graph, and TOWLINE_UNSUPPORTED for any other. TOWLINE_NOT_FOUND: never posted. TOWLINE_AGAIN:
// the post is moving through host memory that is not pinned (docs/gpu.md), which a stream can't wait for;
// call again, or wait for the outcome.
TOWLINE_API int32_t towline_transfer_wait_on(towline_transfer_t* transfer, void* stream);

typedef struct towline_replays_t {
  size_t struct_size;
  uint64_t begun;    // how often replayed graphs have reached the transfer
  uint64_t ended;    // of those: ended
  uint64_t refused;  // of the ended ones: moved nothing
  int32_t status;  // TOWLINE_OK, or why replays are refused from now on: TOWLINE_PEER_LOST, or TOWLINE_STALE
                   // (a region was deregistered, or the peer removed). Capture again.
  uint32_t reserved;
} towline_replays_t;

// Totals of all captured posts of the transfer. Replay one graph only once at a time, just as a transfer is
// posted once at a time. A graph may outlive its transfer and the agent: its replays then move nothing.
TOWLINE_API int32_t towline_transfer_replays(const towline_transfer_t* transfer, towline_replays_t* replays);

// For code on the GPU that moves the transfer's bytes: writes its address of each block, of the lists that bytes come
// from and go to, in order; `count` is their number (where the sides' block sizes differ, that of the smaller blocks).
// The same distance leads to every other byte of the block's region. The addresses hold until the transfer is
// destroyed, also when the peer deregisters its memory, leaves or dies: what is written there then reaches nobody.
// Nothing fences such code: before memory is freed, or given to something else, the application must know that it
// has ended.
//
// TOWLINE_AGAIN: the connection is being made, call again. TOWLINE_BUSY: a post is under way. TOWLINE_UNSUPPORTED:
// the backend is not "cuda", or its GPU reaches the memory only by way of host memory.
TOWLINE_API int32_t towline_transfer_view(towline_transfer_t* transfer, uint64_t* from, uint64_t* to,
                                          size_t count);

#ifdef __cplusplus
}  // extern "C"
#endif
