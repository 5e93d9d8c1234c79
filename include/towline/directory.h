// Directories: where agents find one another by name. A directory keeps small values under keys; agents
// publish their metadata in it, fetch that of others, and see when it goes. etcd is the one that comes with
// Towline; each is a plugin, so that the core needs no such library.
//
// Address. "etcd://host[:port][,host[:port]..][/namespace]". Empty parts come from the configuration
// ("etcd://": all of them), "etcd+tls://" speaks TLS. Characters that mean something in an address are
// written %2F and so on. User, password and certificates come from the configuration only: see
// docs/directories.md.
//
// Keys. What an agent publishes lies under {namespace}/{agent's name}/{label}, whole metadata under the label
// "metadata". Keys given to and got from this API are relative to the namespace: "prefill-0/metadata". They
// are bytes without NUL, at most TOWLINE_MAX_DIRECTORY_KEY_BYTES long.
//
// Calls. Everything that asks the directory returns a call at once: a handle with a status that anyone may
// look at or wait for, exactly one outcome and a deadline. Directories make their own progress, also where an
// application drives its agent, and never hold up a transfer. While no server of a directory answers, calls
// try one after another until their deadline.
#pragma once

#include <towline/towline.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TOWLINE_MAX_DIRECTORY_KEY_BYTES 1024
#define TOWLINE_MAX_DIRECTORY_VALUE_BYTES (64u << 20)  // etcd takes 1.5 MiB unless it is told otherwise
#define TOWLINE_DEFAULT_LABEL "metadata"

typedef struct towline_directory towline_directory_t;
typedef struct towline_directory_call towline_directory_call_t;
typedef struct towline_watch towline_watch_t;

// Directories

// Opens a directory for an agent. Asks nothing of it yet. TOWLINE_NOT_FOUND: there is no plugin for the
// address's scheme (the last error says where it was looked for). One agent's directories of the same address
// are one.
TOWLINE_API int32_t towline_directory_open(towline_agent_t* agent, const char* address,
                                           towline_directory_t** directory);
// Lets go of it. With the last of an address, calls in flight end with TOWLINE_CLOSED, watches end, and what
// was put leased is taken back, for which `timeout_ns` is the limit (0: 2 s); what can't be told to the
// servers by then goes by itself when its lease runs out. Frees the handle in any case.
TOWLINE_API int32_t towline_directory_close(towline_directory_t* directory, uint64_t timeout_ns);
// Servers with their state, lease, keys kept alive, watches: JSON, size convention as towline_agent_info.
TOWLINE_API int32_t towline_directory_info(towline_directory_t* directory, char* json, size_t capacity,
                                           size_t* needed);

// Calls. Each function that starts one takes `timeout_ns` (0: the agent's default). The call is released
// with
// towline_directory_call_release; a null `call` pointer starts it and lets it go.

enum {
  TOWLINE_PUT_LEASED = 1,  // the key goes when this agent is gone; it is put again when the directory lost it
  TOWLINE_PUT_CREATE = 2,  // TOWLINE_ALREADY_EXISTS when the key is there
  TOWLINE_GET_PREFIX = 4,  // every key that begins with `key`; also for delete
  TOWLINE_GET_WAIT = 8,    // until there is one: TOWLINE_NOT_FOUND only at the deadline; also for fetch
  TOWLINE_FETCH_FOLLOW = 16,  // forget the peer (as towline_peer_remove) once the key it came from is gone
};

TOWLINE_API int32_t towline_directory_put(towline_directory_t* directory, const char* key, const void* value,
                                          size_t bytes, uint32_t flags, uint64_t timeout_ns,
                                          towline_directory_call_t** call);
// TOWLINE_NOT_FOUND when there is no such key; a prefix that nothing begins with gives no entries.
TOWLINE_API int32_t towline_directory_get(towline_directory_t* directory, const char* key, uint32_t flags,
                                          uint64_t timeout_ns, towline_directory_call_t** call);
// TOWLINE_NOT_FOUND when there was none.
TOWLINE_API int32_t towline_directory_delete(towline_directory_t* directory, const char* key, uint32_t flags,
                                             uint64_t timeout_ns, towline_directory_call_t** call);

// Puts this agent's present metadata, leased, under {name}/{label}: all regions, or only those of `regions`
// when `count` > 0. Publishing again replaces it. `label` null: TOWLINE_DEFAULT_LABEL; it has no slash.
TOWLINE_API int32_t towline_directory_publish(towline_directory_t* directory, const char* label,
                                              towline_region_t* const* regions, size_t count,
                                              uint64_t timeout_ns, towline_directory_call_t** call);
// Takes back what was published under a label, or with null under every one.
TOWLINE_API int32_t towline_directory_unpublish(towline_directory_t* directory, const char* label,
                                                uint64_t timeout_ns, towline_directory_call_t** call);
// Makes a peer known from what the agent `name` published under `label` (null: TOWLINE_DEFAULT_LABEL), as
// towline_peer_add does. towline_directory_call_peer gives it. A transfer needs no further help of the
// directory.
TOWLINE_API int32_t towline_directory_fetch(towline_directory_t* directory, const char* name,
                                            const char* label, uint32_t flags, uint64_t timeout_ns,
                                            towline_directory_call_t** call);

// TOWLINE_IN_PROGRESS or the outcome.
TOWLINE_API int32_t towline_directory_call_poll(towline_directory_call_t* call);
// Waits for the outcome; TOWLINE_IN_PROGRESS when `timeout_ns` passed first. After a failure the last error
// is the call's.
TOWLINE_API int32_t towline_directory_call_wait(towline_directory_call_t* call, uint64_t timeout_ns);
// Ends it with TOWLINE_CANCELLED if it has no outcome yet. What it asked for may have happened all the same.
TOWLINE_API int32_t towline_directory_call_cancel(towline_directory_call_t* call);
// What failed, with server, key and what to do; "" while in progress or after success. Lives as long as the
// call.
TOWLINE_API const char* towline_directory_call_error(const towline_directory_call_t* call);

typedef struct towline_directory_entry_t {
  const char* key;  // NUL-terminated
  const void* value;
  size_t bytes;
  uint64_t revision;  // of the directory when the key was last put
} towline_directory_entry_t;

// The entries a successful get found, in order of keys: `count` is capacity on entry and the whole number on
// return. They live as long as the call.
TOWLINE_API int32_t towline_directory_call_entries(const towline_directory_call_t* call,
                                                   towline_directory_entry_t* entries, size_t* count);
// The peer a successful fetch made known; each success adds a reference.
TOWLINE_API int32_t towline_directory_call_peer(const towline_directory_call_t* call, towline_peer_t** peer);
// Frees the handle; cancels the call if it is still in progress.
TOWLINE_API void towline_directory_call_release(towline_directory_call_t* call);

// Watches

typedef enum towline_directory_event_kind_t {
  TOWLINE_EVENT_PUT = 1,     // the key is there with this value
  TOWLINE_EVENT_GONE = 2,    // the key is gone; no value
  TOWLINE_EVENT_SYNCED = 3,  // everything that was there when the watch began has been told; no key
} towline_directory_event_kind_t;

typedef struct towline_directory_event_t {
  uint32_t kind;  // towline_directory_event_kind_t
  uint32_t reserved;
  towline_directory_entry_t entry;  // lives until the watch's next event is taken, or the watch released
} towline_directory_event_t;

// Tells what is under the prefix, then TOWLINE_EVENT_SYNCED, then what changes. A watch outlives servers that
// come and go: it goes on where it was, and where the directory no longer knows what happened meanwhile, it
// looks again and tells the difference. Events wait to be pulled; those of one key are merged to its latest.
TOWLINE_API int32_t towline_directory_watch(towline_directory_t* directory, const char* prefix,
                                            towline_watch_t** watch);
// Takes the next event; TOWLINE_TIMED_OUT when none came in time, or why the watch ended for good.
TOWLINE_API int32_t towline_watch_next(towline_watch_t* watch, uint64_t timeout_ns,
                                       towline_directory_event_t* event);
// TOWLINE_OK: following changes. TOWLINE_IN_PROGRESS: (re)connecting. Else why it ended for good.
TOWLINE_API int32_t towline_watch_status(towline_watch_t* watch);
TOWLINE_API void towline_watch_release(towline_watch_t* watch);

#ifdef __cplusplus
}  // extern "C"
#endif
