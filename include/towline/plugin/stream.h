// The plugin table "stream", version 1: for transports that can order what they move in a stream of an
// accelerator (towline/gpu.h). A backend with the tables of v1.h may have it beside them.
//
// A run is one time that a stream comes to a transfer. What is put into a stream stays there when its plan,
// its connection or its backend has gone: it has to move nothing from then on, and to touch nothing of
// theirs.
#pragma once

#include <towline/plugin/v1.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct towline_capture towline_capture;  // what a graph holds of a transfer

typedef struct towline_capture_runs {
  uint64_t begun;
  uint64_t ended;
  uint64_t refused;
  int32_t status;  // TOWLINE_OK, or why runs are refused from now on
  uint32_t reserved;
} towline_capture_runs;

// The first three under the worker's lock, as data's slots.
typedef struct towline_stream_table_v1 {
  size_t struct_size;
  // Puts the whole plan into the graph that the stream is recording. TOWLINE_AGAIN: it records none. With
  // `capture` null it only looks.
  int32_t (*capture)(towline_prepared* prepared, void* stream, towline_capture** capture);
  // As data's submit, once the stream comes to it. cancel has an effect until then.
  int32_t (*submit)(towline_prepared* prepared, const towline_submit_args* args, void* stream);
  // The stream's later work comes after what was submitted of the plan, or captured into the same graph.
  // `capture`: the last one, or null.
  int32_t (*wait)(towline_prepared* prepared, towline_capture* capture, void* stream);
  // Any thread, also when everything else of it has gone.
  void (*runs)(const towline_capture* capture, towline_capture_runs* runs);
  void (*forget)(towline_capture* capture);
} towline_stream_table_v1;

#ifdef __cplusplus
}  // extern "C"
#endif
