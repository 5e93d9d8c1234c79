// Memory of a GPU that payload arrives in, on GPUs made of host memory.
#include "transports/cuda/landing_pool.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "base/error.h"
#include "base/os/memfd.h"
#include "gpu/fake/fake_device.h"

namespace towline::cuda {
namespace {

constexpr uint64_t kBytes = 1u << 20;

class LandingPoolTest : public ::testing::Test {
 protected:
  ~LandingPoolTest() override { fake::faults().reset(); }

  static void fill(void* memory, uint64_t bytes) {
    auto* const to = static_cast<uint8_t*>(memory);
    for (uint64_t i = 0; i < bytes; ++i) to[i] = static_cast<uint8_t>(i * 7 + (i >> 8));
  }
  // Pieces of odd lengths at odd places, more than is read at a time, and what they hold.
  static std::vector<towline_landing_piece> pieces(const LandingPool& pool, std::vector<uint8_t>& expected,
                                                   const uint8_t* content) {
    std::vector<towline_landing_piece> list;
    for (uint64_t at = 3; at + 5000 < pool.bytes(); at += 5003) {
      const uint64_t bytes = 1 + at % 5000;
      list.push_back({pool.address() + at, bytes});
      expected.insert(expected.end(), content + at, content + at + bytes);
    }
    list.push_back({pool.address(), 300'000});
    expected.insert(expected.end(), content, content + 300'000);
    return list;
  }
};

TEST_F(LandingPoolTest, IsReadByTheGpuInPiecesOfAnyLength) {
  LandingPool pool(fake::fake_device(), 0, kBytes, -1);
  const towline_landing_pool_info info = pool.info();
  EXPECT_EQ(info.device, 0u);
  EXPECT_STREQ(info.gpu, "0000:f0:00.0");
  EXPECT_GE(info.bytes, kBytes);
  EXPECT_NE(::fcntl(info.dma_buf, F_GETFD), -1);
  ASSERT_NE(info.host, nullptr);
  EXPECT_NE(reinterpret_cast<uint64_t>(info.host), info.address);
  fill(info.host, kBytes);
  std::vector<uint8_t> expected;
  const auto list = pieces(pool, expected, static_cast<const uint8_t*>(info.host));
  std::vector<uint8_t> got(expected.size());
  EXPECT_EQ(pool.read(list, got.data()), 0);
  EXPECT_EQ(got, expected);
}

TEST_F(LandingPoolTest, MemoryOfAnotherProcessIsImported) {
  const UniqueFd file = create_memfd("a daemon's", kBytes);
  const Mapping theirs = Mapping::map_shared(file.get(), kBytes, MapAccess::kReadWrite);
  fill(theirs.address(), kBytes);
  LandingPool pool(fake::fake_device(), 1, kBytes, file.get());
  EXPECT_EQ(pool.info().dma_buf, -1);
  EXPECT_EQ(pool.info().host, nullptr);
  std::vector<uint8_t> expected;
  const auto list = pieces(pool, expected, theirs.address());
  std::vector<uint8_t> got(expected.size());
  EXPECT_EQ(pool.read(list, got.data()), 0);
  EXPECT_EQ(got, expected);
}

TEST_F(LandingPoolTest, WhatLiesOutsideIsNotRead) {
  LandingPool pool(fake::fake_device(), 0, kBytes, -1);
  uint8_t byte = 0;
  for (const towline_landing_piece piece :
       {towline_landing_piece{pool.address() + pool.bytes(), 1}, towline_landing_piece{pool.address() - 1, 1},
        towline_landing_piece{pool.address(), pool.bytes() + 1},
        towline_landing_piece{pool.address() + 1, UINT64_MAX}})
    EXPECT_THROW((void)pool.read({&piece, 1}, &byte), core::Error);
}

// A late write of a broken GPU must not be taken for a later answer.
TEST_F(LandingPoolTest, AGpuThatFailsOnceIsReadNoMore) {
  LandingPool pool(fake::fake_device(), 0, kBytes, -1);
  const towline_landing_piece piece = {pool.address(), 100};
  uint8_t got[100];
  fake::faults().refuse_launches(1, 719);
  EXPECT_EQ(pool.read({&piece, 1}, got), 719);
  EXPECT_EQ(pool.read({&piece, 1}, got), 719);
}

TEST_F(LandingPoolTest, WithoutDmaBufsThereIsNone) {
  fake::faults().refuse_dma(true);
  EXPECT_THROW(LandingPool(fake::fake_device(), 0, kBytes, -1), core::Error);
}

}  // namespace
}  // namespace towline::cuda
