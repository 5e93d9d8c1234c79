#include "collectives/gpu/image.h"

#include "gpu/embedded_image.h"

#ifdef TOWLINE_COLLECTIVE_KERNEL_IMAGE
TOWLINE_EMBED_IMAGE(towline_collective_kernels, TOWLINE_COLLECTIVE_KERNEL_IMAGE)
#endif

namespace towline::collectives::gpu {

std::span<const unsigned char> kernel_image() noexcept {
#ifdef TOWLINE_COLLECTIVE_KERNEL_IMAGE
  return {towline_collective_kernels_begin, towline_collective_kernels_end};
#else
  return {};
#endif
}

}  // namespace towline::collectives::gpu
