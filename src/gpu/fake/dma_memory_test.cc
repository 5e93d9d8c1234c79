// The calls to NVIDIA's driver for memory that NICs can fill, and that a failing step leaves nothing behind.
#include <fcntl.h>
#include <gtest/gtest.h>

#include <string>

#include "base/error.h"
#include "gpu/driver_dma_memory.h"

namespace towline::cuda {
namespace {

class DmaMemoryTest : public ::testing::Test {
 protected:
  ~DmaMemoryTest() override {
    fails() = "";
    attributes() = 1;
    shown<int>("dma_driver_ordering") = 100;
  }
  std::unique_ptr<DmaMemory> make() { return make_driver_dma_memory(api_, nullptr, 3, 3u << 20); }
  std::string why_not() {
    try {
      (void)make();
      return "it was made";
    } catch (const core::Error& error) {
      return error.message();
    }
  }
  template <class T>
  T& shown(const char* name) {
    return *api_.library.symbol<T*>(name);
  }
  const char*& fails() { return shown<const char*>("dma_driver_fails"); }
  int& attributes() { return shown<int>("dma_driver_attributes"); }

  driver::Api api_{TOWLINE_DMA_DRIVER};
};

TEST_F(DmaMemoryTest, IsMadeForOtherDevicesInWholeUnitsAndGoesWhole) {
  {
    const auto memory = make();
    EXPECT_EQ(memory->bytes(), 4u << 20);
    EXPECT_EQ(shown<uint64_t>("dma_driver_bytes"), 4u << 20);
    EXPECT_EQ(shown<int>("dma_driver_for_devices"), 1);
    EXPECT_EQ(shown<int>("dma_driver_gpu"), 3);
    EXPECT_EQ(shown<int>("dma_driver_handle_type"), 1);
    EXPECT_NE(::fcntl(memory->dma_buf(), F_GETFD), -1);
    EXPECT_EQ(memory->host(), nullptr);
    EXPECT_EQ(shown<int>("dma_driver_live"), 2) << "a range and its mapping";
  }
  EXPECT_EQ(shown<int>("dma_driver_live"), 0);
}

TEST_F(DmaMemoryTest, WhateverStepFailsIsNamedAndNothingStays) {
  for (const char* step : {"cuMemGetAllocationGranularity", "cuMemAddressReserve", "cuMemCreate", "cuMemMap",
                           "cuMemSetAccess"}) {
    fails() = step;
    EXPECT_NE(why_not().find(step), std::string::npos) << why_not();
    EXPECT_EQ(shown<int>("dma_driver_live"), 0) << step;
  }
  fails() = "cuMemGetHandleForAddressRange";
  EXPECT_NE(why_not().find("making GPU memory a dma-buf"), std::string::npos) << why_not();
  EXPECT_EQ(shown<int>("dma_driver_live"), 0);
}

TEST_F(DmaMemoryTest, AGpuThatHasNoneIsNamed) {
  attributes() = 0;
  EXPECT_NE(why_not().find("GPU 3 has no memory that is a dma-buf"), std::string::npos) << why_not();
  api_.range_handle = nullptr;
  EXPECT_NE(why_not().find("cuMemGetHandleForAddressRange"), std::string::npos) << why_not();
}

TEST_F(DmaMemoryTest, TheApplicationsMemoryIsExportedInWholePagesOfTheHost) {
  const DmaExport made = export_driver_memory(api_, nullptr, 3, 0x700000001208, 0x2000);
  EXPECT_NE(::fcntl(made.dma_buf.get(), F_GETFD), -1);
  EXPECT_EQ(made.offset, 0x208u);
  EXPECT_EQ(shown<uint64_t>("dma_driver_range"), 0x700000001000u);
  EXPECT_EQ(shown<uint64_t>("dma_driver_range_bytes"), 0x3000u);
  EXPECT_EQ(shown<int>("dma_driver_handle_type"), 1);
  EXPECT_EQ(shown<uint64_t>("dma_driver_synchronous"), 0x700000001208u);
  EXPECT_EQ(shown<int>("dma_driver_live"), 0) << "no context stays current";
}

TEST_F(DmaMemoryTest, ADriverThatExportsNothingSaysWhatItIsAndMappedMemoryNeedsNoAttribute) {
  const auto why = [this]() -> std::string {
    try {
      (void)export_driver_memory(api_, nullptr, 3, 0x700000001000, 0x1000);
      return "it was exported";
    } catch (const core::Error& error) {
      return error.code() == Status::kUnsupported ? error.message() : "another status";
    }
  };
  fails() = "cuPointerSetAttribute";
  EXPECT_EQ(why(), "it was exported");
  fails() = "cuMemGetHandleForAddressRange";
  EXPECT_NE(
      why().find("cuMemGetHandleForAddressRange makes no dma-buf of 4096 bytes at 0x700000001000 on GPU 3"),
      std::string::npos)
      << why();
  EXPECT_NE(why().find("801"), std::string::npos) << why();
  EXPECT_EQ(shown<int>("dma_driver_live"), 0);
  shown<int>("dma_driver_ordering") = 0;
  EXPECT_NE(why().find("GPU 3 does not order what NICs write"), std::string::npos) << why();
  attributes() = 0;
  EXPECT_NE(why().find("GPU 3 has no memory that is a dma-buf"), std::string::npos) << why();
}

TEST_F(DmaMemoryTest, AGpusPlaceIsWrittenAsTheKernelDoes) {
  EXPECT_EQ(pci_address_of(api_, 0), "0001:af:00.0");
  fails() = "cuDeviceGetAttribute";
  EXPECT_EQ(pci_address_of(api_, 0), "");
}

}  // namespace
}  // namespace towline::cuda
