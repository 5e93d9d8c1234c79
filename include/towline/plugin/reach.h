// The plugin table "reach", version 1: for transports that map a peer's memory, so that storage can read into
// it in place of memory of ours. A backend with the tables of v1.h may have it beside them.
#pragma once

#include <towline/plugin/v1.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct towline_reach_table_v1 {
  size_t struct_size;
  // Where the first byte of an imported region lies in this process, as long as a plan that was prepared from
  // the import is. TOWLINE_UNSUPPORTED: it is not mapped. Under the connection's worker's lock.
  //
  // Whoever moves bytes there keeps that plan from being released meanwhile, and waits for nothing but the
  // copy: the owner of the memory may be waiting.
  int32_t (*reach)(towline_connection* connection, towline_import* import, uint64_t* address);
} towline_reach_table_v1;

#ifdef __cplusplus
}  // extern "C"
#endif
