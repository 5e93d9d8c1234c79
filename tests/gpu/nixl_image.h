// The kernels of nixl_kernels.cu, as the build embedded them. Empty: the build had no CUDA compiler.
#pragma once

#include <span>

namespace towline::gpu_test {

std::span<const unsigned char> nixl_test_image() noexcept;

}  // namespace towline::gpu_test
