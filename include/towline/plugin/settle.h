// The plugin table "settle", version 1: for transports that start copies which cannot be called back, such as
// those of a GPU. A backend with the tables of v1.h may have it beside them.
//
// The core asks before it releases something, and asks again while the answer is TOWLINE_AGAIN. So it waits
// without holding up the worker, and reports no fence before the copy has ended.
#pragma once

#include <towline/plugin/v1.h>

#ifdef __cplusplus
extern "C" {
#endif

// Both under the worker's lock. They do not block.
typedef struct towline_settle_table_v1 {
  size_t struct_size;
  // Before unprepare. Streams and graphs that hold the plan begin no copy from here on. TOWLINE_AGAIN: one
  // that they have begun still runs.
  int32_t (*prepared)(towline_prepared* prepared);
  // Before disconnect, of a connection that is down or given up. Whatever can be called off is called off.
  // TOWLINE_AGAIN: copies still run; progress completes them, with their fences. A disconnect that comes
  // nevertheless completes them without a fence.
  int32_t (*connection)(towline_connection* connection);
} towline_settle_table_v1;

#ifdef __cplusplus
}  // extern "C"
#endif
