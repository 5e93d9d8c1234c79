#include "base/os/dma_buf.h"

#include <fcntl.h>
#include <linux/udmabuf.h>
#include <sys/ioctl.h>

#include <cerrno>

#include "base/error.h"

namespace towline {

UniqueFd make_dma_buf(int memfd, uint64_t bytes) {
  const UniqueFd device(::open("/dev/udmabuf", O_RDWR | O_CLOEXEC));
  if (!device.valid())
    fail_errno(errno, "opening /dev/udmabuf, which makes host memory a dma-buf (modprobe udmabuf)");
  udmabuf_create call = {};
  call.memfd = static_cast<uint32_t>(memfd);
  call.flags = UDMABUF_FLAGS_CLOEXEC;
  call.size = bytes;
  UniqueFd dma_buf(::ioctl(device.get(), UDMABUF_CREATE, &call));
  if (!dma_buf.valid())
    fail_errno(errno,
               "making a dma-buf of {} bytes (the limit is /sys/module/udmabuf/parameters/size_limit_mb)",
               bytes);
  return dma_buf;
}

}  // namespace towline
