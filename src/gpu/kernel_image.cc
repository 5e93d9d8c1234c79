#include "gpu/kernel_image.h"

#ifdef TOWLINE_CUDA_KERNELS
// The assembler takes the file as it is.
asm(R"(
  .section .rodata
  .balign 64
  .global towline_cuda_kernels_begin
  .global towline_cuda_kernels_end
  .hidden towline_cuda_kernels_begin
  .hidden towline_cuda_kernels_end
towline_cuda_kernels_begin:
  .incbin ")" TOWLINE_CUDA_KERNELS R"("
towline_cuda_kernels_end:
  .byte 0
  .previous
)");

extern "C" {
extern const unsigned char towline_cuda_kernels_begin[];
extern const unsigned char towline_cuda_kernels_end[];
}
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
