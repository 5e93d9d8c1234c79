// Counts what this process takes from the heap, libraries included: the program defines malloc and its kin
// over glibc's.
#pragma once

#include <cstdint>

namespace bench {

struct Allocations {
  std::uint64_t calls = 0;        // malloc, calloc, realloc and aligned ones so far
  std::int64_t bytes_in_use = 0;  // as the allocator rounds them
};
Allocations allocations();

}  // namespace bench
