// Whether memory of this process is mapped.
#pragma once

#include <cstdint>

namespace towline {

// False: some page of [address, address + bytes) is not mapped. A system call; says nothing of what another thread
// does meanwhile, nor of access.
bool is_mapped(uint64_t address, uint64_t bytes) noexcept;

}  // namespace towline
