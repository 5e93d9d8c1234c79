#include "base/os/mapped.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

namespace towline {

// MS_ASYNC writes nothing back (since Linux 2.6.19) but looks for holes.
bool is_mapped(uint64_t address, uint64_t bytes) noexcept {
  static const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  const uint64_t first = address / page * page;
  void* const start = reinterpret_cast<void*>(first);  // NOLINT(performance-no-int-to-ptr): an address
  return ::msync(start, address + bytes - first, MS_ASYNC) == 0 || errno != ENOMEM;
}

}  // namespace towline
