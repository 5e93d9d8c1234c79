// The compiled kernels, as the build embedded them.
#pragma once

#include <span>

namespace towline::collectives::gpu {

// Empty: the build had no CUDA compiler.
std::span<const unsigned char> kernel_image() noexcept;

}  // namespace towline::collectives::gpu
