// Blocks as C++ programs write them.
#include <gtest/gtest.h>

#include <array>

#include "towline/towline.hpp"

namespace towline {
namespace {

TEST(Blocks, ABlockAtZeroIsANumberAndNoPointer) {
  const Blocks file = Blocks::at(0, 4096, Kind::kFile, 7);
  EXPECT_EQ(file.address, 0u);
  EXPECT_EQ(file.device, 7u);
}

TEST(Blocks, RepeatingAddsTheInnermostDimension) {
  const Blocks cache = Blocks::at(0, 4096).repeat(3, 1 << 20).repeat(5, 4096);
  EXPECT_EQ(cache.size(), 15u);
  EXPECT_EQ(cache.count[0], 3u);
  EXPECT_EQ(cache.stride[0], 1u << 20);
  EXPECT_EQ(cache.count[1], 5u) << "block 1 is page 1 of layer 0";
  EXPECT_EQ(cache.stride[1], 4096u);
  EXPECT_THROW((void)cache.repeat(1, 0).repeat(1, 0).repeat(1, 0), Error);
}

TEST(Blocks, AMemorysRemainderIsRefusedAndNotLeftOut) {
  std::array<std::byte, 100> memory = {};
  EXPECT_EQ(blocks_of(memory.data(), 100, 25).count[0], 4u);
  try {
    (void)blocks_of(memory.data(), 100, 30);
    FAIL() << "the last 10 bytes are in no block";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Status::kInvalidArgument);
    EXPECT_NE(std::string(error.what()).find("100"), std::string::npos);
  }
}

TEST(PicksInCpp, ARangeOfNothingIsNotEveryBlock) {
  const Picks nothing(Range{0, 0, 0});
  ASSERT_NE(nothing.get(), nullptr);
  EXPECT_NE(nothing.get()->step, 0u) << "all zero means every block";
}

}  // namespace
}  // namespace towline
