// Transfers in the order of a GPU's streams, and in CUDA graphs. Only for transfers that the backend "cuda"
// moves, in one part (threads 1); docs/gpu.md says which those are.
//
// `stream` is a CUstream or cudaStream_t of the GPU that moves the bytes (the transfer's own vram, see
// docs/gpu.md), of its primary context; null is that GPU's default stream. No call here waits for a GPU.
#pragma once

#include <towline/towline.h>

#ifdef __cplusplus
extern "C" {
#endif

// Posts the transfer as work of the stream: the bytes move once the stream has done what it was given before,
// and what it is given later comes after them. The outcome, notice, deadline (counted from here) and fence
// are those of any post; ended before the stream got there, the transfer moves nothing any more and is fenced
// at once. The stream itself goes on in any case: ask for the outcome.
//
// Returns as towline_transfer_post, but never TOWLINE_OK for a post: TOWLINE_OK says that the stream is being
// captured, and the transfer is now part of the graph. Nothing is posted then: each time the graph is
// replayed, the bytes move (see towline_transfer_replays); a transfer with a notice or counter can't be
// captured (TOWLINE_UNSUPPORTED). TOWLINE_AGAIN: also while the connection is being made.
TOWLINE_API int32_t towline_transfer_post_on(towline_transfer_t* transfer, void* stream);
// What the stream is given from here on comes after the transfer's last post: after its bytes have moved, or
// at once where that post has ended otherwise. While the stream is being captured: after a transfer that was
// captured in the same graph, and TOWLINE_UNSUPPORTED for any other. TOWLINE_NOT_FOUND: never posted.
// TOWLINE_AGAIN: the post is on its way through host memory that is not pinned (docs/gpu.md), which no stream
// can wait for; ask again, or wait for the outcome.
TOWLINE_API int32_t towline_transfer_wait_on(towline_transfer_t* transfer, void* stream);

typedef struct towline_replays_t {
  size_t struct_size;
  uint64_t begun;    // how often replayed graphs have come to the transfer
  uint64_t ended;    // of those: over
  uint64_t refused;  // of those that are over: nothing was moved
  int32_t status;  // TOWLINE_OK, or why replays are refused from now on: TOWLINE_PEER_LOST, or TOWLINE_STALE
                   // (a region was deregistered, or the peer removed). Capture anew.
  uint32_t reserved;
} towline_replays_t;

// How captured posts of the transfer fared, all together. One graph is replayed once at a time, as a transfer
// is posted once at a time. A graph may outlive its transfer, and the agent: its replays then move nothing.
TOWLINE_API int32_t towline_transfer_replays(const towline_transfer_t* transfer, towline_replays_t* replays);

#ifdef __cplusplus
}  // extern "C"
#endif
