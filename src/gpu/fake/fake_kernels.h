// KernelDevice on processors: memory on memfds, streams that are threads, and kernels that are their models.
#pragma once

#include "gpu/kernel_device.h"

namespace towline::cuda::fake {

// Streams are FakeStreams. Two GPUs.
KernelDevice& fake_kernel_device();

}  // namespace towline::cuda::fake
