// The files of libfabric's provider shm in /dev/shm: one for each endpoint.
//
// The provider names them after the process, "pid:uid:number", and leaves those of a killed process behind, 4 MiB each. A
// later process that gets the same number (a container that starts again, say) can't have an endpoint of such a name: "Device
// or resource busy". So endpoints get names that no process had before, and each file is locked by its owner: an unlocked
// one is garbage, also where the owner's process number can't be seen, and is removed by whoever opens a rail next.
#pragma once

#include <cstdint>
#include <string>

#include "base/clock.h"
#include "base/os/unique_fd.h"

namespace towline::fabric {

constexpr const char* kShmFolder = "/dev/shm";

// An address for libfabric, "fi_shm://towline-fi-...", under which endpoints are numbered.
[[nodiscard]] std::string unique_shm_address();

// Locks the file of an endpoint that has this name. Owns nothing if the name is none of unique_shm_address()'s or there
// is no such file. Throws Error(kAgain) if it was just taken for garbage.
[[nodiscard]] UniqueFd lock_shm_file(const std::string& endpoint_name, const char* folder = kShmFolder);

// A new file is locked a moment after it was made: one that is older than this has no owner, or is locked.
constexpr uint64_t kNewShmFileNs = 10 * kSecondNs;

// Removes this user's files that nobody has locked and that are older than `age_ns`. Returns how many.
uint64_t remove_abandoned_shm_files(uint64_t age_ns, const char* folder = kShmFolder) noexcept;

}  // namespace towline::fabric
