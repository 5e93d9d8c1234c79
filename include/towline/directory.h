// Directories: agents find one another by name. A directory keeps small values under keys; agents publish
// their metadata in it, fetch that of others, and notice when it is removed. Towline comes with a plugin for
// etcd; directories are plugins so that the core needs no client library.
//
// Address. "etcd://host[:port][,host[:port]..][/namespace]". Empty parts come from the configuration
// ("etcd://": all of them), "etcd+tls://" uses TLS. Characters with a meaning in an address are written as
// %2F and so on. User, password and certificates come from the configuration only: see docs/directories.md.
//
// Keys. An agent publishes under {namespace}/{agent's name}/{label}, its whole metadata under the label
// "metadata". Keys in this API are relative to the namespace: "prefill-0/metadata". They are bytes without
// NUL, at most TOWLINE_MAX_DIRECTORY_KEY_BYTES long.
//
// Calls. Each request to the directory returns a call at once: a handle with a deadline and exactly one
// outcome, which any thread may poll or wait for. Directories make their own progress, even if an application
// drives its agent, and never delay a transfer. While no server of a directory answers, calls try one after
// another until their deadline.
#pragma once

#include <towline/towline.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TOWLINE_MAX_DIRECTORY_KEY_BYTES 1024
#define TOWLINE_MAX_DIRECTORY_VALUE_BYTES (64u << 20)  // etcd's default limit is 1.5 MiB
#define TOWLINE_DEFAULT_LABEL "metadata"

typedef struct towline_directory towline_directory_t;
typedef struct towline_directory_call towline_directory_call_t;
typedef struct towline_watch towline_watch_t;

// Directories

// Opens a directory for an agent, without a request to it. TOWLINE_NOT_FOUND: there is no plugin for the
// address's scheme (the last error says where it was searched). Directories of one agent with the same
// address are one directory.
TOWLINE_API int32_t towline_directory_open(towline_agent_t* agent, const char* address,
                                           towline_directory_t** directory);
// Closes it. With the last handle of an address, calls in flight end with TOWLINE_CLOSED, watches end, and
// leased keys are removed within `timeout_ns` (TOWLINE_DEFAULT_TIMEOUT: 2 s); keys that can't be removed by then disappear when
// their lease runs out. Frees the handle in any case.
TOWLINE_API int32_t towline_directory_close(towline_directory_t* directory, uint64_t timeout_ns);
// The same without waiting: the agent removes leased keys in the background, for which its own end waits up to 2 s.
TOWLINE_API void towline_directory_release(towline_directory_t* directory);
// Servers with their state, lease, keys kept alive, watches: JSON, size convention as towline_agent_info.
TOWLINE_API int32_t towline_directory_info(towline_directory_t* directory, char* json, size_t capacity,
                                           size_t* needed);

// Calls. Each function that starts one takes `timeout_ns` (TOWLINE_DEFAULT_TIMEOUT: the agent's). Release the call with
// towline_directory_call_release; with a null `call` pointer it runs without a handle.

enum {
  TOWLINE_PUT_LEASED = 1,  // the key is removed when this agent ends, and put again if the directory loses it
  TOWLINE_PUT_CREATE = 2,  // TOWLINE_ALREADY_EXISTS if the key exists
  TOWLINE_GET_PREFIX = 4,  // every key that begins with `key`; also for delete
  TOWLINE_GET_WAIT = 8,    // waits until there is one: TOWLINE_NOT_FOUND only at the deadline; also for fetch
  TOWLINE_FETCH_FOLLOW = 16,  // forget the peer (as towline_peer_remove) once the key it came from is gone
};

TOWLINE_API int32_t towline_directory_put(towline_directory_t* directory, const char* key, const void* value,
                                          size_t bytes, uint32_t flags, uint64_t timeout_ns,
                                          towline_directory_call_t** call);
// TOWLINE_NOT_FOUND if there is no such key; a prefix without keys gives no entries.
TOWLINE_API int32_t towline_directory_get(towline_directory_t* directory, const char* key, uint32_t flags,
                                          uint64_t timeout_ns, towline_directory_call_t** call);
// TOWLINE_NOT_FOUND if there was no such key.
TOWLINE_API int32_t towline_directory_delete(towline_directory_t* directory, const char* key, uint32_t flags,
                                             uint64_t timeout_ns, towline_directory_call_t** call);

// Puts this agent's current metadata, leased, under {name}/{label}: all regions, or only those of `regions`
// when `count` > 0. Publishing again replaces it. `label` null: TOWLINE_DEFAULT_LABEL; it has no slash.
TOWLINE_API int32_t towline_directory_publish(towline_directory_t* directory, const char* label,
                                              towline_region_t* const* regions, size_t count,
                                              uint64_t timeout_ns, towline_directory_call_t** call);
// Removes the metadata published under a label, or with null under every label.
TOWLINE_API int32_t towline_directory_unpublish(towline_directory_t* directory, const char* label,
                                                uint64_t timeout_ns, towline_directory_call_t** call);
// Adds a peer from the metadata that the agent `name` published under `label` (null: TOWLINE_DEFAULT_LABEL),
// like towline_peer_add. towline_directory_call_peer returns the peer. Transfers do not need the directory
// after this.
TOWLINE_API int32_t towline_directory_fetch(towline_directory_t* directory, const char* name,
                                            const char* label, uint32_t flags, uint64_t timeout_ns,
                                            towline_directory_call_t** call);

// TOWLINE_IN_PROGRESS or the outcome.
TOWLINE_API int32_t towline_directory_call_poll(towline_directory_call_t* call);
// Waits for the outcome; TOWLINE_NOT_YET if `timeout_ns` passes first. After a failure the last error is
// the call's.
TOWLINE_API int32_t towline_directory_call_wait(towline_directory_call_t* call, uint64_t timeout_ns);
// Ends it with TOWLINE_CANCELLED if it has no outcome yet. The request may still have taken effect.
TOWLINE_API int32_t towline_directory_call_cancel(towline_directory_call_t* call);
// The error message, with server, key and what to do; "" while in progress or after success. Valid as long as
// the call.
TOWLINE_API const char* towline_directory_call_error(const towline_directory_call_t* call);

typedef struct towline_directory_entry_t {
  const char* key;  // NUL-terminated
  const void* value;
  size_t bytes;
  uint64_t revision;  // of the directory when the key was last put
} towline_directory_entry_t;

// The entries that a successful get found, in order of keys: `count` is the capacity on entry and the total
// number on return. They are valid as long as the call. `entry_bytes`: sizeof(towline_directory_entry_t).
TOWLINE_API int32_t towline_directory_call_entries(const towline_directory_call_t* call,
                                                   towline_directory_entry_t* entries, size_t entry_bytes,
                                                   size_t* count);
// The peer that a successful fetch added; each success adds a reference.
TOWLINE_API int32_t towline_directory_call_peer(const towline_directory_call_t* call, towline_peer_t** peer);
// Frees the handle; cancels the call if it is still in progress.
TOWLINE_API void towline_directory_call_release(towline_directory_call_t* call);

// Watches

typedef enum towline_directory_event_kind_t {
  TOWLINE_WATCH_PUT = 1,     // the key exists with this value
  TOWLINE_WATCH_GONE = 2,    // the key is gone; no value
  TOWLINE_WATCH_SYNCED = 3,  // everything that existed when the watch began has been delivered; no key
} towline_directory_event_kind_t;

typedef struct towline_directory_event_t {
  uint32_t kind;  // towline_directory_event_kind_t
  uint32_t reserved;
  towline_directory_entry_t entry;  // valid until the next event is taken, or the watch released
} towline_directory_event_t;

// Delivers the keys under the prefix, then TOWLINE_WATCH_SYNCED, then changes. A watch continues when servers
// restart or change. If the directory no longer knows what happened meanwhile, the watch reads the state
// again and delivers the difference. Events wait until they are taken; those of one key are merged into the
// latest.
TOWLINE_API int32_t towline_directory_watch(towline_directory_t* directory, const char* prefix,
                                            towline_watch_t** watch);
// Takes the next event; TOWLINE_NOT_YET if none came in time, or the reason why the watch ended.
TOWLINE_API int32_t towline_watch_next(towline_watch_t* watch, uint64_t timeout_ns,
                                       towline_directory_event_t* event);
// TOWLINE_OK: following changes. TOWLINE_IN_PROGRESS: (re)connecting. Else the reason why it ended.
TOWLINE_API int32_t towline_watch_status(towline_watch_t* watch);
TOWLINE_API void towline_watch_release(towline_watch_t* watch);

#ifdef __cplusplus
}  // extern "C"
#endif
