// Named, shaped regions: memory is found by a name, and its parts by their place in a layout, instead of by addresses
// that one agent sends another.
//
// A region may be registered with a name and a layout (towline_region_options_t). Both travel in the agent's metadata.
// A list made from such a region has one block for each element of the layout, in order, and remembers the layout:
// towline_block_list_select turns "these pages of every layer" into block indices, and a plan between two lists whose
// layouts don't match is refused instead of moving the wrong bytes.
#pragma once

#include <towline/towline.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TOWLINE_MAX_REGION_NAME_BYTES 255

// Elements of equal length in up to four nested dimensions, outermost first: element (i0, i1, ..) lies at
// i0*stride[0] + i1*stride[1] + .. from the beginning of the region.
struct towline_layout {
  size_t struct_size;
  uint64_t element_bytes;  // contiguous bytes that are moved as a whole: a page, say
  uint32_t dimensions;     // 1 to TOWLINE_MAX_DIMENSIONS
  uint32_t reserved;       // 0
  uint64_t count[TOWLINE_MAX_DIMENSIONS];
  uint64_t stride[TOWLINE_MAX_DIMENSIONS];  // bytes; all 0: without gaps
};

// A list of one block for each element of the region, or of one block for all of it if it has no layout. The region
// stays registered by itself: the list does not hold it.
TOWLINE_API int32_t towline_region_list(const towline_region_t* region, towline_block_list_t** list);
// The same of the peer's region with this name. TOWLINE_NOT_FOUND lists the names there are; towline_peer_refresh fetches
// regions that the peer has registered since.
TOWLINE_API int32_t towline_peer_region_list(const towline_peer_t* peer, const char* name,
                                             towline_block_list_t** list);
// Describes the peer's region with this name, as far as known. `info_bytes`: sizeof(towline_region_info_t).
TOWLINE_API int32_t towline_peer_region_find(const towline_peer_t* peer, const char* name,
                                             towline_region_info_t* info, size_t info_bytes);
// The name of the peer's region with this key, "" without one. `capacity` of TOWLINE_MAX_REGION_NAME_BYTES + 1 always
// suffices.
TOWLINE_API int32_t towline_peer_region_name(const towline_peer_t* peer, uint64_t key, char* name,
                                             size_t capacity);
// The layout that the list was made with, strides filled in. Set `layout->struct_size`. TOWLINE_NOT_FOUND: it has none.
TOWLINE_API int32_t towline_block_list_layout(const towline_block_list_t* list, towline_layout_t* layout);
// The indices of blocks that are picked in each dimension of the list's layout: every combination, the last dimension
// counting fastest. `picks` has one entry for each of the layout's `dimensions`; one that is all zero picks everything.
// Writes at most `capacity` indices; `needed` receives how many there are. `pick_bytes`: sizeof(towline_picks_t).
TOWLINE_API int32_t towline_block_list_select(const towline_block_list_t* list, const towline_picks_t* picks,
                                              size_t pick_bytes, size_t dimensions, uint32_t* indices,
                                              size_t capacity, size_t* needed);

#ifdef __cplusplus
}  // extern "C"
#endif
