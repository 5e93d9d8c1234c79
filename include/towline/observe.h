// Log and trace hooks for the application.
#pragma once

#include <towline/plan.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum towline_log_level_t {
  TOWLINE_LOG_OFF = 0,
  TOWLINE_LOG_ERROR = 1,    // a requested action failed
  TOWLINE_LOG_WARNING = 2,  // it continued, but needs attention
  TOWLINE_LOG_INFO = 3,     // rare events of interest: started, connected, lost
  TOWLINE_LOG_DEBUG = 4,
  TOWLINE_LOG_TRACE = 5,
} towline_log_level_t;

// Called with one message at a time: `bytes` of UTF-8 without a newline, also NUL-terminated, valid during the call. It
// runs on the thread that logs, which may hold locks of the library: it must not call the library, and not throw.
typedef void (*towline_log_sink_t)(void* context, uint32_t level, const char* message, size_t bytes);

// Messages of this process go there instead of to standard error; null: to standard error again. When this returns, the
// sink before is no longer in use. The setting log.level says which messages there are.
TOWLINE_API void towline_set_log_sink(towline_log_sink_t sink, void* context);

// Every setting, with the value that an agent made now with this `config` (TOML text, or null) would read, and where it
// comes from: JSON, size convention as towline_agent_info.
//   {"schema": TOWLINE_JSON_SCHEMA, "settings": [{"name", "type", "default", "bounds", "meaning", "promised", "value", "source"}],
//    "unknown": [{"name", "nearest"}]}
// Values of secrets are left out. `unknown`: names in the environment, file or `config` that no setting has. A setting has "wrong" if its value is refused: why.
TOWLINE_API int32_t towline_settings(const char* config, char* json, size_t capacity, size_t* needed);

// One run of a transfer, a plan's post or a copy.
typedef struct towline_operation_t {
  size_t struct_size;
  const void* id;        // the same at both calls; used again for later runs
  uint32_t op;           // towline_op_t
  uint32_t priority;     // towline_priority_t
  uint64_t bytes;        // of all of it
  uint64_t moved_bytes;  // at the end: that have certainly been moved
  const char* peer;      // its name; valid during the call
  const char* backend;   // likewise; "staged": several
  int32_t status;        // at the end: the outcome, or why it was not accepted
  uint32_t reserved;
} towline_operation_t;

// Null: none is called. `begin` runs on the thread that posts, `end` on the one that finds the outcome, without locks.
// They may call the library, except that they must not destroy the agent.
typedef struct towline_hooks_t {
  size_t struct_size;
  void* context;
  void (*begin)(void* context, const towline_operation_t* operation);
  void (*end)(void* context, const towline_operation_t* operation);
} towline_hooks_t;

// From now on these are called around each run, once each; null: none. Runs in a stream (gpu.h) have none, and one that
// is under way while this is called may have its end alone. While none are set they cost nothing; with them posts take a slower way.
// At most 64 times for an agent.
TOWLINE_API int32_t towline_agent_set_hooks(towline_agent_t* agent, const towline_hooks_t* hooks);

#ifdef __cplusplus
}
#endif
