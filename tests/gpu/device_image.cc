#include "gpu/device_image.h"

#include "gpu/embedded_image.h"

#ifdef TOWLINE_DEVICE_TEST_IMAGE
TOWLINE_EMBED_IMAGE(towline_device_test_kernels, TOWLINE_DEVICE_TEST_IMAGE)
#endif

namespace towline::gpu_test {

std::span<const unsigned char> device_test_image() noexcept {
#ifdef TOWLINE_DEVICE_TEST_IMAGE
  return {towline_device_test_kernels_begin, towline_device_test_kernels_end};
#else
  return {};
#endif
}

}  // namespace towline::gpu_test
