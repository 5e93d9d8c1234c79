// Machines whose driver won't do.
#include "gpu/driver_api.h"

#include <gtest/gtest.h>

#include <string>

#include "base/error.h"
#include "gpu/driver.h"

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

// An instance of MIG is not the GPU that it is part of: two ranks on two instances have nothing in common.
TEST(CudaDriver, InstancesOfMigAreGpusOfTheirOwn) {
  const Api api(TOWLINE_DMA_DRIVER);
  int& partitioned = *api.library.symbol<int*>("dma_driver_partitioned");
  Gpu whole;
  identify(api, 3, whole);
  EXPECT_FALSE(whole.partitioned);
  EXPECT_EQ(uuid_text(whole.uuid, whole.partitioned), "GPU-13131313-1313-1313-1313-131313131313");
  partitioned = 1;
  Gpu instance;
  identify(api, 3, instance);
  partitioned = 0;
  EXPECT_TRUE(instance.partitioned);
  EXPECT_EQ(uuid_text(instance.uuid, instance.partitioned), "MIG-13131313-1313-1313-1313-131313131399");
}

}  // namespace
}  // namespace towline::cuda::driver
