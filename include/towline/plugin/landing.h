// Landing, an optional slot of the table "memory": for backends that copy between GPU memory of this process and host memory.
// Others use it through towline_host_v1_t.landing: a backend that moves bytes by the processor, such as tcp, gathers
// GPU memory into staging memory before it sends, and scatters what it received.
//
// A landing is the staging memory of one connection: `slots` pieces for each way, of `slot_bytes` each. One copy at a
// time uses a slot. Nothing here waits for a GPU: begin starts a copy and poll tells when it has ended.
#pragma once

#include <towline/plugin/plan.h>
#include <towline/plugin/v1.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct towline_landing towline_landing;
typedef struct towline_landing_pool towline_landing_pool;

enum {                            // ways of a copy
  TOWLINE_LANDING_GATHER = 0,     // pieces of GPU memory to a slot, side by side
  TOWLINE_LANDING_SCATTER = 1,    // a slot's bytes to pieces of GPU memory
  TOWLINE_LANDING_MOST_SLOTS = 8  // of each way
};

#define TOWLINE_LANDING_MOST_SLOT_BYTES (1u << 20)
#define TOWLINE_LANDING_MOST_PIECES 1024
#define TOWLINE_LANDING_MOST_POOLS 64

typedef struct towline_landing_piece {
  uint64_t address;  // in GPU memory
  uint64_t bytes;
} towline_landing_piece;

// Memory on a GPU that payload arrives in.
typedef struct towline_landing_pool_info {
  uint64_t device;   // the GPU
  uint64_t address;  // where it finds the memory
  uint64_t bytes;
  void* host;       // where the processor finds it; NULL: nowhere
  int32_t dma_buf;  // by which the kernel gives it to NICs, as long as the pool lives; -1: it was given
  char gpu[20];     // the GPU's PCI address as the kernel writes it; empty: not known
} towline_landing_pool_info;

// Memory on a GPU as the kernel gives it to NICs.
typedef struct towline_landing_export {
  int32_t dma_buf;  // the caller's, which closes it
  uint32_t reserved;
  uint64_t offset;  // of the first byte in it
  char gpu[24];     // the GPU's PCI address as the kernel writes it; empty: not known
} towline_landing_export;

typedef struct towline_landing_table_v1 {
  size_t struct_size;
  // Is this GPU memory of this process, all of it on the GPU region->device? TOWLINE_OK, or a reason through
  // host->fail. Under the registration lock.
  int32_t (*check)(towline_backend* backend, const towline_region_ref* region);
  // Takes pinned staging memory for at most TOWLINE_LANDING_MOST_SLOTS slots each way, of at most
  // TOWLINE_LANDING_MOST_SLOT_BYTES each; *gather and *scatter are where the processor finds the first slot of each
  // way, the others follow without gaps. `device`: a GPU that will use it. Or a reason through host->fail. May block
  // on system calls. Any thread.
  int32_t (*open)(towline_backend* backend, uint64_t device, uint32_t slots, uint32_t slot_bytes,
                  towline_landing** landing, void** gather, void** scatter);
  // No copy is under way.
  void (*close)(towline_landing* landing);
  // Makes ready to copy for one more GPU, so that its first copy need not. One thread at a time uses a landing, from
  // here on.
  int32_t (*ready)(towline_landing* landing, uint64_t device);
  // Starts a copy between a slot and at most TOWLINE_LANDING_MOST_PIECES pieces, all on one GPU. The caller keeps the
  // memory registered until the copy has ended. An error: nothing was started. TOWLINE_STALE: there is no GPU memory
  // at one of the addresses any more.
  int32_t (*begin)(towline_landing* landing, uint32_t way, uint32_t slot, uint64_t device,
                   const towline_landing_piece* pieces, uint32_t count, int32_t* vendor_code);
  // TOWLINE_OK: it has ended, and its bytes are there. TOWLINE_IN_PROGRESS, or why it failed; then nothing of it
  // moves any more.
  int32_t (*poll)(towline_landing* landing, uint32_t way, uint32_t slot, uint64_t now_ns,
                  int32_t* vendor_code);

  // Absent in older plugins: struct_size tells.

  // Makes host memory that payload arrives in reachable for this landing's GPUs, until the landing closes; the caller
  // keeps it that long. At most TOWLINE_LANDING_MOST_POOLS. Or a reason through host->fail. May block.
  int32_t (*reach)(towline_landing* landing, void* address, uint64_t bytes);
  // As a scatter of begin, from fragments in the slot or in memory of reach, to pieces of as many bytes: two lists that
  // are cut differently, each of at most TOWLINE_LANDING_MOST_PIECES, in order, without gaps. poll tells its end, and
  // may begin it: together with what arrived meanwhile, also on other connections.
  int32_t (*unpack)(towline_landing* landing, uint32_t slot, uint64_t device,
                    const towline_landing_piece* fragments, uint32_t fragment_count,
                    const towline_landing_piece* pieces, uint32_t piece_count, int32_t* vendor_code);

  // Absent in older plugins.

  // Takes memory on a GPU, for payload that a NIC puts there. `gpu`: its PCI address; "": the one that the backend is
  // set to, or one that the process uses. `given`: a descriptor of memory on that GPU which another process has
  // exported, and keeps; -1: new memory. Or a reason in `reason`. May block. Any thread.
  int32_t (*open_pool)(towline_backend* backend, const char* gpu, uint64_t bytes, int32_t given,
                       towline_landing_pool** pool, towline_landing_pool_info* info, char* reason,
                       size_t reason_bytes);
  // No landing that was told of it copies any more. Also after its backend was closed.
  void (*close_pool)(towline_landing_pool* pool);
  // As reach: fragments for the pool's own GPU may lie in it, until the landing closes.
  int32_t (*reach_pool)(towline_landing* landing, towline_landing_pool* pool);
  // Copies pieces of the pool to host memory, side by side, and waits for it. Any thread.
  int32_t (*read_pool)(towline_landing_pool* pool, const towline_landing_piece* pieces, uint32_t count,
                       void* to, int32_t* vendor_code);

  // Absent in older plugins.

  // Exports a region of GPU memory, as check takes it, so that NICs read and write it themselves. What a NIC has
  // registered stays until the NIC lets it go, also when the memory is freed. Or a reason in `reason`. May block.
  // Under the registration lock.
  int32_t (*export_memory)(towline_backend* backend, const towline_region_ref* region,
                           towline_landing_export* memory, char* reason, size_t reason_bytes);
} towline_landing_table_v1;
#define TOWLINE_LANDING_TABLE_V1_MINIMUM TOWLINE_BYTES_THROUGH(towline_landing_table_v1, poll)

#ifdef __cplusplus
}  // extern "C"
#endif
