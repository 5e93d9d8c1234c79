// The kernels' image, for all GPUs that this build compiles for; empty if it was built without CUDA's compiler.
#pragma once

#include <span>

namespace towline::collectives::experts {

std::span<const unsigned char> kernel_image() noexcept;

}  // namespace towline::collectives::experts
