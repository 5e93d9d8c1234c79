// The plugin table "storage_list", version 1: for storage that can tell what there is. A backend with the
// table "storage" (v1.h) may have it beside that.
#pragma once

#include <towline/plugin/v1.h>

#ifdef __cplusplus
extern "C" {
#endif

// One thing that there is; both live as long as the call. Not 0: that is enough.
typedef int32_t (*towline_storage_found_fn)(void* argument, const char* uri,
                                            const towline_storage_attributes* attributes);

typedef struct towline_storage_list_table_v1 {
  size_t struct_size;
  // Tells of everything whose URI begins with `prefix`, in order. Any thread, no lock: it may block.
  int32_t (*list)(towline_backend* backend, const char* prefix, towline_storage_found_fn found,
                  void* argument);
} towline_storage_list_table_v1;

#ifdef __cplusplus
}  // extern "C"
#endif
