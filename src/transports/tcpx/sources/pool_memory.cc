#include "transports/tcpx/sources/pool_memory.h"

#include <fcntl.h>
#include <linux/udmabuf.h>
#include <sys/ioctl.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace towline::tcpx {

PoolMemory make_pool_memory(uint64_t bytes) {
  const UniqueFd device(::open("/dev/udmabuf", O_RDWR | O_CLOEXEC));
  if (!device.valid())
    fail_errno(errno, "opening /dev/udmabuf, which makes host memory a dma-buf (modprobe udmabuf)");
  const UniqueFd memory = create_memfd("towline-tcpx-pool", bytes);
  // Pages that were only reserved are cleared when a processor first touches them, whatever a NIC wrote there before.
  Mapping mapping = Mapping::map_shared(memory.get(), bytes, MapAccess::kReadWrite);
  std::memset(mapping.address(), 0, bytes);
  udmabuf_create call = {};
  call.memfd = static_cast<uint32_t>(memory.get());
  call.flags = UDMABUF_FLAGS_CLOEXEC;
  call.size = bytes;
  UniqueFd dma_buf(::ioctl(device.get(), UDMABUF_CREATE, &call));
  if (!dma_buf.valid())
    fail_errno(errno,
               "making a dma-buf of {} bytes (the limit is /sys/module/udmabuf/parameters/size_limit_mb)",
               bytes);
  return {std::move(mapping), std::move(dma_buf)};
}

}  // namespace towline::tcpx
