// The plugin table "info", version 1: what a backend says of itself in an agent's info. A backend with the tables of
// v1.h may have it beside them.
#pragma once

#include <towline/plugin/v1.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct towline_info_table_v1 {
  size_t struct_size;
  // JSON object, for people. Under worker 0's lock.
  int32_t (*describe)(towline_backend* backend, char* json, size_t capacity);
} towline_info_table_v1;

#ifdef __cplusplus
}  // extern "C"
#endif
