// GPU memory as a provider gets it: a domain that keeps what it was asked for takes a provider's place, as no device here
// registers a dma-buf.
#ifdef TOWLINE_HAVE_LIBFABRIC

#include "fabric/ofi/ofi_memory.h"

#include <gtest/gtest.h>
#include <rdma/fi_errno.h>

#include <cstring>

#include "base/error.h"

namespace towline::fabric {
namespace {

class OfiMemoryTest : public ::testing::Test {
 protected:
  OfiMemoryTest() {
    domain_.fid.context = this;
    domain_.mr = &operations_;
    operations_.size = sizeof operations_;
    operations_.regattr = [](fid* domain, const fi_mr_attr* attributes, uint64_t flags,
                             fid_mr** region) -> int {
      auto& test = *static_cast<OfiMemoryTest*>(domain->context);
      test.flags_ = flags;
      test.buffer_ = *reinterpret_cast<const OfiDmaBuf*>(attributes->mr_iov);
      test.attributes_ = *attributes;
      *region = &test.region_;
      if (test.results_.empty()) return 0;
      const int result = test.results_.back();
      test.results_.pop_back();
      return result;
    };
    info_.caps = FI_RMA | FI_HMEM;
    info_.domain_attr = &domain_attributes_;
    info_.fabric_attr = &fabric_attributes_;
    domain_attributes_.mr_key_size = 4;
    fabric_attributes_.prov_name = provider_;
  }
  fid_mr* add(uint32_t library = FI_VERSION(1, 20)) {
    return ofi_register(domain_, info_, library, memory_, "ofi efa rdmap0s6-rdm");
  }
  std::string why_not(uint32_t library = FI_VERSION(1, 20)) {
    try {
      (void)add(library);
      return "it was registered";
    } catch (const core::Error& error) {
      return error.code() == Status::kUnsupported ? error.message() : "another status";
    }
  }
  static bool contains(const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
  }

  fid_domain domain_ = {};
  fi_ops_mr operations_ = {};
  fi_info info_ = {};
  fi_domain_attr domain_attributes_ = {};
  fi_fabric_attr fabric_attributes_ = {};
  char provider_[32] = "efa";
  MemoryToRegister memory_ = {.address = reinterpret_cast<void*>(0x700000001208),
                              .bytes = 0x2000,
                              .remote_read = true,
                              .dmabuf_fd = 77,
                              .dmabuf_offset = 0x208,
                              .device = 5};
  fid_mr region_ = {};
  uint64_t flags_ = 0;
  OfiDmaBuf buffer_;
  fi_mr_attr attributes_ = {};
  std::vector<int> results_;
};

TEST_F(OfiMemoryTest, AProviderGetsTheDmaBufTheGpuAndARandomKey) {
  EXPECT_EQ(add(), &region_);
  EXPECT_EQ(flags_, kOfiDmaBuf);
  EXPECT_EQ(buffer_.fd, 77);
  EXPECT_EQ(buffer_.offset, 0x208u);
  EXPECT_EQ(buffer_.bytes, 0x2000u);
  EXPECT_EQ(buffer_.base, reinterpret_cast<void*>(0x700000001000)) << "where the dma-buf begins";
  EXPECT_EQ(attributes_.iov_count, 1u);
  EXPECT_EQ(attributes_.iface, FI_HMEM_CUDA);
  EXPECT_EQ(attributes_.device.cuda, 5);
  EXPECT_NE(attributes_.access & FI_REMOTE_READ, 0u);
  EXPECT_EQ(attributes_.access & FI_REMOTE_WRITE, 0u);
  EXPECT_LE(attributes_.requested_key, UINT32_MAX);
  const uint64_t first = attributes_.requested_key;
  (void)add();
  EXPECT_NE(attributes_.requested_key, first);
}

TEST_F(OfiMemoryTest, AKeyInUseIsReplaced) {
  results_ = {0, -FI_ENOKEY};
  EXPECT_EQ(add(), &region_);
  EXPECT_TRUE(results_.empty());
}

TEST_F(OfiMemoryTest, TheMemlockLimitIsNamedWhereItMayBeReached) {
  operations_.reg = [](fid*, const void*, size_t, uint64_t, uint64_t, uint64_t, uint64_t, fid_mr**,
                       void*) -> int { return -FI_ENOMEM; };
  memory_.dmabuf_fd = -1;
  try {
    (void)add();
    FAIL() << "it was registered";
  } catch (const core::Error& error) {
    EXPECT_EQ(error.code(), Status::kOutOfMemory);
    EXPECT_TRUE(contains(error.message(), "rdmap0s6-rdm: 8192 bytes at 0x700000001208")) << error.message();
    EXPECT_TRUE(contains(error.message(), "memlock limit")) << error.message();
  }
}

TEST_F(OfiMemoryTest, WhatLibraryProviderAndDeviceLackIsNamed) {
  EXPECT_TRUE(contains(why_not(FI_VERSION(1, 19)), "libfabric 1.19 registers no dma-buf (it needs 1.20)"))
      << why_not(FI_VERSION(1, 19));
  info_.caps = FI_RMA;
  EXPECT_TRUE(contains(why_not(), "rdmap0s6-rdm: the device does not offer to move GPU memory (FI_HMEM)"))
      << why_not();
  info_.caps |= FI_HMEM;
  std::strcpy(provider_, "tcp;ofi_rxm");
  EXPECT_TRUE(contains(why_not(), "with the providers efa and verbs only")) << why_not();
  std::strcpy(provider_, "verbs;ofi_rxm");
  EXPECT_EQ(why_not(), "it was registered");
  results_ = {-FI_ENOSYS};
  EXPECT_TRUE(
      contains(why_not(), "8192 bytes of GPU memory at 0x700000001208 can't be registered by their dma-buf"));
}

}  // namespace
}  // namespace towline::fabric

#endif
