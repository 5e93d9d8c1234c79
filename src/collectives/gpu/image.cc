#include "collectives/gpu/image.h"

#ifdef TOWLINE_COLLECTIVE_KERNEL_IMAGE
// The assembler takes the file as it is.
asm(R"(
  .section .rodata
  .balign 64
  .global towline_collective_kernels_begin
  .global towline_collective_kernels_end
  .hidden towline_collective_kernels_begin
  .hidden towline_collective_kernels_end
towline_collective_kernels_begin:
  .incbin ")" TOWLINE_COLLECTIVE_KERNEL_IMAGE R"("
towline_collective_kernels_end:
  .byte 0
  .previous
)");

extern "C" {
extern const unsigned char towline_collective_kernels_begin[];
extern const unsigned char towline_collective_kernels_end[];
}
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
