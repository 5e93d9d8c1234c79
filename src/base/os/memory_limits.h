// How much memory is still available before the kernel kills a process.
#pragma once

#include <cstdint>
#include <string>

namespace towline {

// Bytes that this process could still take without the kernel having to kill something: what the host has
// available, swap included, and what every memory cgroup (v1 or v2) above this process leaves, page cache
// counted as free. An estimate, outdated when it returns; UINT64_MAX when nothing is known. root is the prefix of
// /proc and /sys, for tests.
uint64_t available_memory_bytes(const std::string& root = "");

}  // namespace towline
