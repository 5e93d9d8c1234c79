// Plans as backends see them: resolved block lists and the runs that pair their blocks. Plain C structs,
// immutable once given to a backend, valid until it has released everything prepared from them.
//
// A list is a sequence of blocks in one agent's memory, kept as *extents* (one contiguous length repeated
// over nested dimensions, so that a whole paged cache layer is one entry) or, if the list is irregular, as
// *flat* 16-byte entries. A plan pairs blocks of two lists by runs: `count` blocks from local_block and
// remote_block on, each side advancing by its step. cursor.hpp turns a plan into segments; a backend never
// needs to read a list itself.
//
// Plans and lists begin with their size and grow at the end (sized.h). The elements of their arrays never
// change: what is new about them comes as another array.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <towline/plugin/sized.h>

#ifdef __cplusplus
extern "C" {
#endif

// One more than the public limit: re-cutting unequal block sizes adds an innermost dimension.
#define TOWLINE_EXTENT_DIMENSIONS 5

// The part of a region of the list's owner that a plan needs.
typedef struct towline_region_ref {
  uint64_t key;      // names the registration at its owner: index and generation
  uint64_t address;  // in the owner's address space
  uint64_t bytes;
  uint64_t device;
  uint32_t kind;    // towline_kind_t
  uint32_t access;  // TOWLINE_ACCESS_*
  uint32_t flags;   // TOWLINE_REGION_*
  uint32_t reserved;
} towline_region_ref;

typedef struct towline_extent {
  uint64_t address;      // of block 0, in the owner's address space
  uint64_t length;       // bytes of one block
  uint64_t first_block;  // index in the list of this extent's block 0
  uint64_t blocks;       // product of count[]
  uint32_t region;       // index into the list's regions
  uint32_t dimensions;
  uint64_t count[TOWLINE_EXTENT_DIMENSIONS];   // outermost first; the last counts fastest
  uint64_t stride[TOWLINE_EXTENT_DIMENSIONS];  // bytes
} towline_extent;

typedef struct towline_flat_block {
  uint64_t address;
  uint32_t length;  // bytes; a list with a longer block is kept as extents
  uint32_t region;
} towline_flat_block;

typedef struct towline_list {
  size_t struct_size;
  const towline_extent* extents;   // null when flat
  const towline_flat_block* flat;  // null when extents
  uint64_t extent_count;           // entries of either array
  uint64_t blocks;                 // in all
  uint64_t block_length;           // of every block, or 0 if lengths differ
  uint64_t blocks_per_extent;      // of every extent, or 0 if they differ
  const towline_region_ref* regions;
  uint64_t region_count;
} towline_list;

typedef struct towline_run {
  uint32_t local_block;
  uint32_t remote_block;
  uint32_t count;
  uint32_t flags;  // 0
} towline_run;

typedef struct towline_plan {
  size_t struct_size;
  const towline_list* local;
  const towline_list* remote;
  const towline_run* runs;
  uint64_t run_count;
  uint64_t local_step;  // from one block of a run to the next; 1 unless the plan is one regular pick
  uint64_t remote_step;
  uint64_t blocks;        // in all
  uint64_t bytes;         // in all
  uint64_t block_length;  // of every block, or 0 if lengths differ (pairs are always equal)
} towline_plan;

// One piece of a plan: `length` bytes at `local` (a pointer of this process) against `remote` (the owner's
// address).
typedef struct towline_segment {
  uint64_t local;
  uint64_t remote;
  uint64_t length;
  uint32_t local_region;   // index into plan->local->regions
  uint32_t remote_region;  // index into plan->remote->regions
} towline_segment;

#ifdef __cplusplus
}  // extern "C"
#endif
