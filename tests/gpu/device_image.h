// The tests' own kernels, as the build embedded them. Empty: the build had no CUDA compiler.
#pragma once

#include <span>

namespace towline::gpu_test {

std::span<const unsigned char> device_test_image() noexcept;

}  // namespace towline::gpu_test
