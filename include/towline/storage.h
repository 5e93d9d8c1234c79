// Storage: files, block devices and objects as regions of an agent.
//
// A file is registered like memory and its region used like memory: its kind is TOWLINE_FILE (or
// TOWLINE_BLOCK, TOWLINE_OBJECT), its address 0, and `device` a number that the agent gave it. A transfer
// moves bytes between a list of dram, its local list, and a list of such regions, its remote list: both are
// this agent's own, no peer is needed. READ is from storage to memory.
//
//   towline_region_t* file;
//   towline_storage_register(agent, "file:/data/kv.bin", NULL, &file);
//   towline_blocks_t page = {.address = 4096, .length = 4096, .kind = TOWLINE_FILE,
//                            .device = towline_region_device(file)};
//
// Registering, querying, listing and committing talk to the file system or the server and block as long as
// that does. What differs for objects ("s3://bucket/key") is told in docs/storage.md.
#pragma once

#include <towline/towline.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {                           // towline_storage_options_t.flags
  TOWLINE_STORAGE_CREATE = 1,    // make the file when it is not there
  TOWLINE_STORAGE_TRUNCATE = 2,  // empty it first
  TOWLINE_STORAGE_DIRECT = 4,    // past the page cache (O_DIRECT); addresses and lengths need no alignment
  TOWLINE_STORAGE_REPLACE = 8,   // write a new file that takes the place of the old one at commit
  TOWLINE_STORAGE_CONDITIONAL = 16,  // objects: a WRITE or commit fails with TOWLINE_STALE where somebody
                                     // else has made, changed or removed the object since it was registered
};

typedef enum towline_sync_t {
  TOWLINE_SYNC_NONE = 0,  // the operating system writes back when it likes
  TOWLINE_SYNC_DATA =
      1,  // a WRITE is done when its bytes, and what is needed to find them, are on the device
  TOWLINE_SYNC_FULL = 2,  // the same with all of the file's attributes (fsync)
} towline_sync_t;

typedef struct towline_storage_options_t {
  size_t struct_size;
  uint32_t access;  // TOWLINE_ACCESS_*: what transfers may do; 0: READ, with CREATE, TRUNCATE or REPLACE both
  uint32_t flags;   // TOWLINE_STORAGE_*
  uint32_t sync;    // towline_sync_t
  uint32_t mode;    // permission bits of a file that is made, less the umask; 0: 0666
  uint64_t bytes;   // size of the region: transfers stay below it, WRITEs may grow the file up to it;
                    // 0: the present size
  int32_t fd;       // used where `uri` is null: an open descriptor, which is duplicated
  uint32_t reserved;
} towline_storage_options_t;

typedef struct towline_storage_info_t {
  size_t struct_size;
  uint32_t exists;       // 0: nothing there, and the rest is 0
  uint32_t kind;         // TOWLINE_FILE, TOWLINE_BLOCK or TOWLINE_OBJECT
  uint64_t bytes;        // size
  uint64_t modified_ns;  // since 1970
} towline_storage_info_t;

// Opens and registers. `uri`: "file:/absolute/path", "file:path" or "s3://bucket/key", taken as it is
// (nothing is decoded); null for options->fd. TOWLINE_UNSUPPORTED: no backend serves the scheme. With
// TOWLINE_STORAGE_REPLACE the old file stays as it is, and is what everybody else sees, until
// towline_storage_commit. An object that is written anew (CREATE | TRUNCATE), or only read and its `bytes`
// given, is not asked for: what is wrong with it is told by its transfers.
TOWLINE_API int32_t towline_storage_register(towline_agent_t* agent, const char* uri,
                                             const towline_storage_options_t* options,
                                             towline_region_t** region);
// What is there. A thing that is not there is no error: info->exists is then 0.
TOWLINE_API int32_t towline_storage_query(towline_agent_t* agent, const char* uri,
                                          towline_storage_info_t* info);
// One thing that is there; both live as long as the call. Not 0: that is enough.
typedef int32_t (*towline_storage_found_t)(void* argument, const char* uri,
                                           const towline_storage_info_t* info);
// Tells of everything whose URI begins with `prefix` ("s3://bucket/", "s3://bucket/model/layer"), in order.
// TOWLINE_UNSUPPORTED: the scheme's backend can't list.
TOWLINE_API int32_t towline_storage_list(towline_agent_t* agent, const char* prefix,
                                         towline_storage_found_t found, void* argument);
// Makes everything written so far durable and, with TOWLINE_STORAGE_REPLACE, puts the new file in the place
// of the old one: whoever looks, also after a crash, finds the old or the new one, never a part. Waits for
// transfers in flight up to `timeout_ns`. A replacement can be committed once: transfers made before answer
// TOWLINE_STALE, new ones may READ. Deregistering without a commit drops the replacement.
TOWLINE_API int32_t towline_storage_commit(towline_region_t* region, uint64_t timeout_ns);

// What the region is: key, address, bytes, device, kind, access.
TOWLINE_API int32_t towline_region_info(const towline_region_t* region, towline_region_info_t* info);
// The number that blocks of this region name in `device`.
TOWLINE_API uint64_t towline_region_device(const towline_region_t* region);

#ifdef __cplusplus
}  // extern "C"
#endif
