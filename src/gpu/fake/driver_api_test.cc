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

TEST(CudaDriver, AGpuThatIsNotThereIsNamedWithHowManyThereAre) {
  const Api api(TOWLINE_DMA_DRIVER);  // is the driver that is found from now on, and shows one GPU
  nvidia_device().start();
  EXPECT_NE(nvidia_context(0), nullptr);
  try {
    (void)nvidia_context(5);
    FAIL() << "it was taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Status::kInvalidArgument);
    EXPECT_EQ(error.message(), "cuda: there is no GPU 5: the driver shows this process 1");
  }
}

class CudaDriverStreams : public ::testing::Test {
 protected:
  void TearDown() override { answers(0, 0, nullptr); }
  void answers(int result, int capture, Context context) {
    *api_.library.symbol<int*>("dma_driver_stream") = result;
    *api_.library.symbol<int*>("dma_driver_capture") = capture;
    *api_.library.symbol<Context*>("dma_driver_stream_context") = context;
  }
  [[nodiscard]] StreamState state_of(void* stream) const { return look_at_stream(api_, mine_, stream); }
  [[nodiscard]] std::string refusal_of(void* stream) const {
    try {
      (void)state_of(stream);
      return "it was taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Status::kInvalidArgument);
      return error.message();
    }
  }

  const Api api_{TOWLINE_DMA_DRIVER};
  const Context mine_ = reinterpret_cast<Context>(0x1000);
  const Context other_ = reinterpret_cast<Context>(0x2000);
  void* const stream_ = reinterpret_cast<void*>(0x3000);
};

TEST_F(CudaDriverStreams, OfThisContextRunOrRecord) {
  answers(0, kCaptureNone, mine_);
  EXPECT_EQ(state_of(stream_), StreamState::kRuns);
  answers(0, kCaptureActive, mine_);
  EXPECT_EQ(state_of(stream_), StreamState::kRecords);
}

TEST_F(CudaDriverStreams, OfAnotherContextAreForeignAndTheDefaultStreamIsNot) {
  answers(0, kCaptureNone, other_);
  EXPECT_EQ(state_of(stream_), StreamState::kForeign);
  EXPECT_EQ(state_of(nullptr), StreamState::kRuns);
}

// All that the driver may answer about a handle that is not one any more.
TEST_F(CudaDriverStreams, ThatWereDestroyedAreRefusedAsSuch) {
  for (const Result result : {kInvalidHandle, kInvalidContext, kContextIsDestroyed}) {
    answers(result, kCaptureNone, mine_);
    EXPECT_NE(refusal_of(stream_).find("there is no stream"), std::string::npos) << refusal_of(stream_);
  }
}

TEST_F(CudaDriverStreams, WhoseGraphIsSpoiltAreRefused) {
  answers(0, kCaptureInvalidated, mine_);
  EXPECT_NE(refusal_of(stream_).find("was spoilt"), std::string::npos) << refusal_of(stream_);
}

}  // namespace
}  // namespace towline::cuda::driver
