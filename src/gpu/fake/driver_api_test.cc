// Machines whose driver won't do.
#include "gpu/driver_api.h"

#include <gtest/gtest.h>

#include <string>

#include "base/error.h"

namespace towline::cuda::driver {
namespace {

std::string refusal(const char* file) {
  try {
    const Api api(file);
    return "it was taken";
  } catch (const Error& error) {
    return error.message();
  }
}

TEST(CudaDriver, OneThatIsAbsentIsNamed) {
  const std::string text = refusal("libcuda-absent.so.1");
  EXPECT_NE(text.find("libcuda-absent.so.1"), std::string::npos) << text;
}

TEST(CudaDriver, OneThatIsTooOldSaysWhatIsNeeded) {
  EXPECT_EQ(refusal(TOWLINE_DRIVER_11040), "cuda: the driver speaks CUDA 11.4; 12.0 or later is needed");
}

TEST(CudaDriver, OneThatLacksAFunctionNamesIt) {
  EXPECT_EQ(refusal(TOWLINE_DRIVER_12000), "cuda: the driver (CUDA 12.0) has no cuInit");
}

}  // namespace
}  // namespace towline::cuda::driver
