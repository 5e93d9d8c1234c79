// The exchange of experts' tokens (docs/experts.md): the table of the library libtowline_experts.so, which exports
// `towline_experts_v1`, a function without arguments that returns it. Its caller is a package for one engine's interface; nixl_ep
// is the first.
//
// A member is this process's rank in a group: memory on a GPU that the other ranks map or write to, and kernels in the
// application's streams. Functions return a status (towline/status.h); `error` has the text of the calling thread's last failure.
// One thread at a time uses a member. Structs begin with their size (towline/plugin/sized.h).
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <towline/export.h>
#include <towline/plugin/sized.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct towline_experts towline_experts;
struct towline_experts_functions_v1;  // experts_functions.h

typedef struct towline_experts_options {
  size_t struct_size;
  uint32_t gpu;         // as this process counts them
  uint32_t rank;        // of `capacity` at most
  uint32_t capacity;    // ranks that there may be; at most 64
  uint32_t local;       // experts of each rank
  uint64_t bytes;       // for exchanges: as `bytes_for` says
  uint64_t timeout_ns;  // of every wait in a kernel. A rank that is later is masked
  // Of experts_functions.h: open_to_hosts() makes an agent with them, to exchange tokens with ranks whose memory
  // can't be mapped. Null: with ranks of this host alone.
  const struct towline_experts_functions_v1* functions;
  // Ranks with another name count as on another host. Null or "": the real host. At most 255 bytes.
  const char* host;
  // Of the agent (towline_agent_options_t). Null: the hosts of the setting `listen`. Without it "127.0.0.1:0" if ranks that connect()
  // could not map were there and all are on this host, else "*:0".
  const char* listen;
} towline_experts_options;
#define TOWLINE_EXPERTS_OPTIONS_MINIMUM TOWLINE_BYTES_THROUGH(towline_experts_options, timeout_ns)

enum {  // towline_experts_call.op
  TOWLINE_EXPERTS_DISPATCH = 0,
  TOWLINE_EXPERTS_COMBINE = 1,
  TOWLINE_EXPERTS_BARRIER = 2,  // of all ranks that are not masked
  TOWLINE_EXPERTS_MASK = 3,     // `peer`
  TOWLINE_EXPERTS_UNMASK = 4,   // `peer`
  TOWLINE_EXPERTS_CLEAN = 5,    // unmasks the connected ranks, and masks the others
  TOWLINE_EXPERTS_QUERY = 6,    // to `out`, as int32: 1 for each masked rank of `capacity`
};
enum {  // towline_experts_call.phases
  TOWLINE_EXPERTS_SEND = 1,
  TOWLINE_EXPERTS_RECEIVE = 2,
};
enum {  // towline_experts_call.format
  TOWLINE_EXPERTS_BFLOAT16 = 0,
  TOWLINE_EXPERTS_FP8 = 1,          // e4m3, with a float32 scale for each 128 elements
  TOWLINE_EXPERTS_ROUND_SCALE = 2,  // with FP8: scales are powers of two
  TOWLINE_EXPERTS_UE8M0 = 4,        // with ROUND_SCALE: the scales' exponents, four to an int32
  TOWLINE_EXPERTS_LOGFMT = 8,       // a combine's results go in 10 bits where their magnitude allows it
};

// Addresses are on the member's GPU, contiguous, and 16-byte aligned where they hold elements. places: ranks * max_tokens.
typedef struct towline_experts_call {
  size_t struct_size;
  uint32_t op;
  uint32_t phases;
  uint32_t format;
  uint32_t peer;
  uint32_t ranks;       // the exchange is among the first so many
  uint32_t tokens;      // of this rank
  uint32_t max_tokens;  // of any rank
  uint32_t hidden;      // elements of a token; a multiple of 128, with FP8 of 512; at most 16384
  uint32_t topk;        // at most 32
  uint32_t reserved;
  uint64_t ticket;          // RECEIVE without SEND: what the SEND set
  const void* x;            // dispatch: bfloat16 [tokens][hidden]; combine: bfloat16 [local][places][hidden]
  const int64_t* topk_idx;  // [tokens][topk]; -1: none
  const float* topk_weights;  // combine: [tokens][topk]
  void* out;  // dispatch: [local][places][hidden], bfloat16 or e4m3; combine: bfloat16 [tokens][hidden]
  void*
      scales;  // dispatch with FP8: [local][hidden / 128][places] float, or [local][hidden / 512][places] int32
  int32_t* src_info;      // [local][places]: each token's number at its source
  int64_t* layout_range;  // [local][ranks]: where a rank's tokens begin << 32 | how many
  int32_t* count;         // dispatch: [local]
  int32_t* stats;         // dispatch: [local], to which counts are added; may be null
  int64_t* wait_ns;       // [ranks], to which each rank's wait is added; may be null
} towline_experts_call;
#define TOWLINE_EXPERTS_CALL_MINIMUM TOWLINE_BYTES_THROUGH(towline_experts_call, wait_ns)

enum {  // towline_experts_batch.op
  TOWLINE_EXPERTS_BATCH_DISPATCH = 0,
  TOWLINE_EXPERTS_BATCH_COMBINE = 1,
};

// A batch for prefill. A dispatch whose counts are not known has two calls: SEND puts the tokens, waits on the host
// until all ranks have, and sets `received`, `max_tokens` and `received_per_expert`; RECEIVE, with the same struct, fills outputs of
// that size. With counts of an earlier dispatch (`prefix`, `source_tokens`, `received` and `max_tokens`) it has one call of both
// phases, as a combine has, and no wait on the host. Addresses are on the member's GPU, contiguous, and 16-byte aligned where they hold tokens.
typedef struct towline_experts_batch {
  size_t struct_size;
  uint32_t op;
  uint32_t phases;
  uint32_t ranks;        // all of them, of which each has a part
  uint32_t blocks;       // multiprocessors that it may use
  uint32_t tokens;       // of this rank
  uint32_t max_tokens;   // of any rank
  uint32_t received;     // rows: tokens of all ranks that this one gets
  uint32_t token_bytes;  // a multiple of 16. Combine: of bfloat16
  uint32_t scales;       // of a token, four bytes each; dispatch
  uint32_t topk;         // at most 128; 0: without routes
  uint32_t experts;      // of each rank; dispatch with SEND alone
  uint32_t alignment;    // to which counts of experts are rounded up; 0 or 1: not
  const void* x;         // dispatch: [tokens]; combine: [received]
  const void* x_scales;
  int64_t scale_token_stride;  // in scales
  int64_t scale_stride;
  const int64_t* topk_idx;           // dispatch: [tokens][topk]; -1: none
  const float* topk_weights;         // dispatch: [tokens][topk]; combine: [received][topk]
  const uint8_t* in_rank;            // [tokens][ranks]: 1 where the rank gets the token
  const int32_t* tokens_per_expert;  // [ranks * experts]; dispatch with SEND alone
  const void* bias[2];               // combine: bfloat16 [tokens], added; may be null
  int32_t* prefix;  // [ranks]: rows of the ranks up to this one. SEND writes it, other calls read it
  int32_t*
      source_tokens;  // [received]: each row's number at its rank. RECEIVE alone writes it, other calls read it
  void* out;          // dispatch: [received], by rank and then by number; combine: [tokens]
  void* out_scales;       // [received][scales]
  int64_t* out_topk_idx;  // [received][topk]: this rank's experts, from 0 on; -1 for others
  float*
      out_topk_weights;  // dispatch: [received][topk], 0 for experts of others; combine: [tokens][topk], sums
  int32_t* received_per_expert;  // host memory, [experts]
} towline_experts_batch;
#define TOWLINE_EXPERTS_BATCH_MINIMUM TOWLINE_BYTES_THROUGH(towline_experts_batch, received_per_expert)

typedef struct towline_experts_table_v1 {
  size_t struct_size;
  const char* (*error)(void);
  // The `bytes` that exchanges of at most such a shape need.
  uint64_t (*bytes_for)(uint32_t capacity, uint32_t local, uint32_t max_tokens, uint32_t hidden);
  int32_t (*open)(const towline_experts_options* options, towline_experts** member);
  // Waits for the member's kernels in the last stream that it was used in (of a member for batches in all streams, since its calls are in
  // order with one another), and, once a graph has recorded it, for all that this process has put onto the GPU. Nothing may use the
  // member any more.
  void (*close)(towline_experts* member);
  // What another rank needs to connect to this one. *bytes: the room at `to`, then what was needed.
  int32_t (*describe)(towline_experts* member, uint8_t* to, size_t* bytes);
  // Maps another rank's memory or, where that can't be, finds a way for transfers. The rank stays masked. Both sides must connect.
  // TOWLINE_AGAIN: for transfers both sides have to call open_to_hosts() and give each other a new description.
  int32_t (*connect)(towline_experts* member, uint32_t rank, const uint8_t* description, size_t bytes,
                     uint64_t timeout_ns);
  // Masks the rank and lets its memory go. Waits as `close` does.
  int32_t (*disconnect)(towline_experts* member, uint32_t rank);
  // Puts kernels into a stream of the member's GPU and returns; graphs record them. call->ticket is set by a SEND that is not
  // received at once; at most two such are open, and they are received in their order.
  int32_t (*issue)(towline_experts* member, towline_experts_call* call, void* stream);
  // A combine without a copy: memory of the member for [local][ranks * max_tokens][hidden] results, to be given as its `x`.
  int32_t (*results)(towline_experts* member, uint32_t max_tokens, uint32_t hidden, void** address);
  // The memory of `bytes`.
  int32_t (*memory)(towline_experts* member, void** address, uint64_t* bytes);
  // As towline_status_name. May be absent.
  const char* (*status_name)(int32_t status);
  // A batch. A member's first call of `issue` for an exchange, or of `batch`, decides which of them it is for. What a batch had to do without
  // is NaN (all bits set), and later batches fail and name the rank, until it is unmasked here and there. May be absent.
  int32_t (*batch)(towline_experts* member, towline_experts_batch* call, void* stream);
  // Lets ranks reach this one whose memory can't be mapped: of other hosts, or of another instance of MIG. Makes an agent that listens at
  // `listen`; until then the member listens to processes of this host alone. Does nothing a second time. Of ranks that
  // exchange batches all are open, or none: before any other rank of the host exchanges another batch, all have opened. Waits, at most the
  // timeout, until none of them reads the last one. May be absent.
  int32_t (*open_to_hosts)(towline_experts* member);
} towline_experts_table_v1;
#define TOWLINE_EXPERTS_TABLE_V1_MINIMUM TOWLINE_BYTES_THROUGH(towline_experts_table_v1, memory)

typedef const towline_experts_table_v1* (*towline_experts_v1_fn)(void);

#ifdef __cplusplus
}  // extern "C"
#endif
