#include "gpu/nixl_image.h"

#include "gpu/embedded_image.h"

#ifdef TOWLINE_NIXL_TEST_IMAGE
TOWLINE_EMBED_IMAGE(towline_nixl_test_kernels, TOWLINE_NIXL_TEST_IMAGE)
#endif

namespace towline::gpu_test {

std::span<const unsigned char> nixl_test_image() noexcept {
#ifdef TOWLINE_NIXL_TEST_IMAGE
  return {towline_nixl_test_kernels_begin, towline_nixl_test_kernels_end};
#else
  return {};
#endif
}

}  // namespace towline::gpu_test
