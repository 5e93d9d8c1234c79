// Storage: files, block devices and objects as regions of an agent.
//
// A file is registered like memory and its region is used like memory: its kind is TOWLINE_MEMORY_FILE (or
// TOWLINE_MEMORY_BLOCK, TOWLINE_MEMORY_OBJECT), its address is 0, and `device` is a number that the agent assigned.
// Bytes move from and to lists of such regions like those of memory. The other list is of this agent's memory, or of a
// peer's.
//
//   towline_region_t* file;
//   towline_storage_register(agent, "file:/data/kv.bin", NULL, &file);
//   towline_blocks_t page = {.address = 4096, .length = 4096, .kind = TOWLINE_MEMORY_FILE,
//                            .device = towline_region_device(file)};
//
// Registering, querying, listing and committing call the file system or the server, and block as long as it
// takes. docs/storage.md says what differs for objects ("s3://bucket/key").
#pragma once

#include <towline/towline.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {                           // towline_storage_options_t.flags
  TOWLINE_STORAGE_CREATE = 1,    // create the file if it does not exist
  TOWLINE_STORAGE_TRUNCATE = 2,  // empty it first
  TOWLINE_STORAGE_DIRECT = 4,    // bypass the page cache (O_DIRECT); addresses and lengths need no alignment
  TOWLINE_STORAGE_REPLACE = 8,   // write a new file that replaces the old one at commit
  TOWLINE_STORAGE_CONDITIONAL = 16,  // objects: a WRITE or commit fails with TOWLINE_STALE if another
                                     // client has created, changed or removed it since it was registered
};

typedef enum towline_sync_t {
  TOWLINE_SYNC_NONE = 0,  // the operating system writes back when it likes
  TOWLINE_SYNC_DATA = 1,  // a WRITE is done when its bytes, and the metadata to find them, are on the device
  TOWLINE_SYNC_FULL = 2,  // the same with all of the file's attributes (fsync)
} towline_sync_t;

typedef struct towline_storage_options_t {
  size_t struct_size;
  uint32_t access;  // TOWLINE_ACCESS_*: allowed transfers; 0: READ, with CREATE, TRUNCATE or REPLACE both
  uint32_t flags;   // TOWLINE_STORAGE_*
  uint32_t sync;    // towline_sync_t
  uint32_t mode;    // permission bits of a new file, less the umask; 0: 0666
  uint64_t bytes;   // size of the region: transfers stay below it, WRITEs may grow the file up to it;
                    // 0: the current size
  int32_t fd;       // used if `uri` is null: an open descriptor, which is duplicated
  uint32_t reserved;
  // As in towline_region_options_t, but peers are not told: storage is this agent's own. With a layout and `bytes` 0 a file
  // that may be written has at least the layout's size.
  const char* name;
  const towline_layout_t* layout;
} towline_storage_options_t;

typedef struct towline_storage_info_t {
  size_t struct_size;
  uint32_t exists;       // 0: it does not exist, and the rest is 0
  uint32_t kind;         // TOWLINE_MEMORY_FILE, TOWLINE_MEMORY_BLOCK or TOWLINE_MEMORY_OBJECT
  uint64_t bytes;        // size
  uint64_t modified_ns;  // since 1970
} towline_storage_info_t;

// Opens and registers. `uri`: "file:/absolute/path", "file:path" or "s3://bucket/key", taken literally
// (nothing is decoded); null for options->fd. TOWLINE_UNSUPPORTED: no backend serves the scheme. With
// TOWLINE_STORAGE_REPLACE the old file does not change, and all others see it, until towline_storage_commit.
// The server is not asked about an object that is written new (CREATE | TRUNCATE), or that is only read and
// whose `bytes` are given: its transfers report errors.
TOWLINE_API int32_t towline_storage_register(towline_agent_t* agent, const char* uri,
                                             const towline_storage_options_t* options,
                                             towline_region_t** region);
// Describes a file or object. A missing one is not an error: info->exists is then 0.
TOWLINE_API int32_t towline_storage_query(towline_agent_t* agent, const char* uri,
                                          towline_storage_info_t* info);
// Called once for each entry; the pointers are valid during the call. Return non-zero to stop.
typedef int32_t (*towline_storage_found_t)(void* argument, const char* uri,
                                           const towline_storage_info_t* info);
// Lists everything whose URI begins with `prefix` ("s3://bucket/", "s3://bucket/model/layer"), in order.
// TOWLINE_UNSUPPORTED: the scheme's backend can't list.
TOWLINE_API int32_t towline_storage_list(towline_agent_t* agent, const char* prefix,
                                         towline_storage_found_t found, void* argument);
// Makes everything written so far durable and, with TOWLINE_STORAGE_REPLACE, replaces the old file with the new one: every reader,
// even after a crash, sees the old file or the new one, never a part. Waits for transfers in flight up to `timeout_ns`: if they take
// longer it answers TOWLINE_TIMED_OUT, and all is as before. Posts meanwhile answer TOWLINE_STALE, another commit TOWLINE_BUSY. A
// replacement can be committed once: older transfers then answer TOWLINE_STALE, also if the backend fails; new ones may READ.
// Deregistering without a commit drops the replacement.
TOWLINE_API int32_t towline_storage_commit(towline_region_t* region, uint64_t timeout_ns);

#ifdef __cplusplus
}  // extern "C"
#endif
