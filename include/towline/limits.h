// How much memory is still available.
#pragma once

#include <towline/export.h>

#ifdef __cplusplus
#include <cstdint>
extern "C" {
#else
#include <stdint.h>
#endif

// Bytes that this process can still allocate before the kernel kills a process: the least of the host's
// available memory, including swap, and the room left in each memory cgroup (v1 or v2) above this process. An
// estimate that may be out of date when it returns; UINT64_MAX if nothing is known.
TOWLINE_API uint64_t towline_memory_available(void);

#ifdef __cplusplus
}  // extern "C"
#endif
