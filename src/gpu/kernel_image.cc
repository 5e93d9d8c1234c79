#include "gpu/kernel_image.h"

#include "gpu/embedded_image.h"

#ifdef TOWLINE_CUDA_KERNELS
TOWLINE_EMBED_IMAGE(towline_cuda_kernels, TOWLINE_CUDA_KERNELS)
#endif

namespace towline::cuda {

std::span<const unsigned char> kernel_image() noexcept {
#ifdef TOWLINE_CUDA_KERNELS
  return {towline_cuda_kernels_begin, towline_cuda_kernels_end};
#else
  return {};
#endif
}

}  // namespace towline::cuda
