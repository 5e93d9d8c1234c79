// How much memory this host can still give.
#pragma once

#include <towline/export.h>

#ifdef __cplusplus
#include <cstdint>
extern "C" {
#else
#include <stdint.h>
#endif

// Bytes that this process can still take before the kernel ends a process: what the host has available, swap
// included, and what each memory cgroup (v1 or v2) above this process leaves. An estimate, outdated when it
// returns; UINT64_MAX when nothing is known.
TOWLINE_API uint64_t towline_memory_available(void);

#ifdef __cplusplus
}  // extern "C"
#endif
