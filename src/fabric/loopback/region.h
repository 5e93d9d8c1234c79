// Memory as a port of the loopback network has it registered.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <string>

#include "base/error.h"
#include "base/os/memfd.h"
#include "fabric/domain.h"

namespace towline::fabric {

// A dma-buf is mapped once more, and reached in no other way: as with a NIC, its address says nothing to the processor.
class LoopbackRegion {
 public:
  LoopbackRegion(const MemoryToRegister& memory, const std::string& rail) : memory_(memory) {
    if (memory.dmabuf_fd < 0) return;
    const off_t bytes = ::lseek(memory.dmabuf_fd, 0, SEEK_END);
    if (bytes < 0 || static_cast<uint64_t>(bytes) < memory.dmabuf_offset ||
        static_cast<uint64_t>(bytes) - memory.dmabuf_offset < memory.bytes)
      fail(Status::kInvalidArgument, "{}: a dma-buf of {} bytes does not hold {} bytes at {}", rail, bytes,
           memory.bytes, memory.dmabuf_offset);
    const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
    skip_ = memory.dmabuf_offset % page;
    device_ = Mapping::map_shared(memory.dmabuf_fd, skip_ + memory.bytes, MapAccess::kReadWrite,
                                  memory.dmabuf_offset - skip_);
  }

  [[nodiscard]] const MemoryToRegister& memory() const noexcept { return memory_; }
  // Where the processor finds what NICs know by this address.
  [[nodiscard]] uint8_t* find(uint64_t address) const noexcept {
    if (!device_.valid()) return reinterpret_cast<uint8_t*>(address);
    return device_.address() + skip_ + (address - reinterpret_cast<uint64_t>(memory_.address));
  }

 private:
  MemoryToRegister memory_;
  Mapping device_;
  uint64_t skip_ = 0;  // to the region in it
};

}  // namespace towline::fabric
