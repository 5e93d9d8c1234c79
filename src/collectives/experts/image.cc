#include "collectives/experts/image.h"

#include "gpu/embedded_image.h"

#ifdef TOWLINE_EXPERT_KERNEL_IMAGE
TOWLINE_EMBED_IMAGE(towline_expert_kernels, TOWLINE_EXPERT_KERNEL_IMAGE)
#endif

namespace towline::collectives::experts {

std::span<const unsigned char> kernel_image() noexcept {
#ifdef TOWLINE_EXPERT_KERNEL_IMAGE
  return {towline_expert_kernels_begin, towline_expert_kernels_end};
#else
  return {};
#endif
}

}  // namespace towline::collectives::experts
