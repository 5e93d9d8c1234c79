#include "replay/model.h"

#include <gtest/gtest.h>

#include <map>

#include "failure.h"

namespace tool::replay {
namespace {

CacheShape shape_of(std::string_view model, uint32_t layers = 0) {
  return make_shape(find_model(model), layers, "bf16", 16);
}

TEST(Model, BytesPerTokenAreThoseOfTheModels) {
  EXPECT_EQ(shape_of("Llama-3.1-8B").bytes_per_token(), 131072u);
  EXPECT_EQ(shape_of("llama-3.1-70b").bytes_per_token(), 327680u);
  EXPECT_EQ(shape_of("qwen3-32b").bytes_per_token(), 262144u);
  EXPECT_EQ(shape_of("deepseek-v3").bytes_per_token(), 70272u);
  EXPECT_EQ(shape_of("llama-3.1-8b", 4).bytes_per_token(), 131072u / 8);
  EXPECT_EQ(make_shape(find_model("llama-3.1-8b"), 0, "fp8", 16).bytes_per_token(), 65536u);
}

TEST(Model, WhatDoesNotFitIsRefused) {
  EXPECT_THROW((void)find_model("gpt-2"), Failure);
  EXPECT_THROW((void)dtype_bytes("int3"), Failure);
  EXPECT_THROW((void)shape_of("llama-3.1-8b", 33), Failure);
  EXPECT_THROW((void)make_shape(find_model("llama-3.1-8b"), 0, "bf16", 48), Failure);
  EXPECT_THROW(check_tensor_parallel(shape_of("llama-3.1-8b"), 3, "decode"), Failure);
  EXPECT_THROW(check_tensor_parallel(shape_of("llama-3.1-8b"), 0, "decode"), Failure);
  EXPECT_NO_THROW(check_tensor_parallel(shape_of("llama-3.1-8b"), 16, "decode"));
  EXPECT_NO_THROW(check_tensor_parallel(shape_of("deepseek-v3"), 7, "decode"));
}

TEST(Model, EveryDecodeRankGetsEachOfItsHeadsOnceFromARankThatHasIt) {
  const CacheShape shape = shape_of("llama-3.1-8b");
  for (const uint32_t prefill : {1u, 2u, 4u, 8u, 16u}) {
    for (const uint32_t decode : {1u, 2u, 4u, 8u, 16u}) {
      const uint32_t granule = granule_heads(shape, prefill, decode);
      for (uint32_t rank = 0; rank < decode; ++rank) {
        const HeadRange wanted = heads_of_rank(shape, decode, rank);
        uint32_t next = wanted.first;
        for (const Slice& slice : slices_of_rank(shape, prefill, decode, rank)) {
          const HeadRange held = heads_of_rank(shape, prefill, slice.prefill_rank);
          ASSERT_LT(slice.prefill_rank, prefill);
          EXPECT_EQ(slice.heads.first, next);
          EXPECT_EQ(slice.heads.count % granule, 0u);
          EXPECT_GE(slice.heads.first, held.first);
          EXPECT_LE(slice.heads.first + slice.heads.count, held.first + held.count);
          next += slice.heads.count;
        }
        EXPECT_EQ(next, wanted.first + wanted.count) << prefill << " to " << decode;
      }
    }
  }
}

TEST(Model, ReplicasOfALatentCacheShareTheWork) {
  const CacheShape shape = shape_of("deepseek-v3");
  std::map<uint32_t, int> used;
  for (uint32_t rank = 0; rank < 4; ++rank) {
    const auto slices = slices_of_rank(shape, 4, 4, rank);
    ASSERT_EQ(slices.size(), 1u);
    ++used[slices[0].prefill_rank];
  }
  EXPECT_EQ(used.size(), 4u);
}

PoolLayout pool_layout(uint32_t ranks, uint32_t rank) {
  const CacheShape shape = shape_of("llama-3.1-8b", 3);
  return {.shape = shape, .heads = heads_of_rank(shape, ranks, rank), .pages = 10, .base = 1 << 20};
}

// Address of the block with this index.
uint64_t block_address(const towline::Blocks& blocks, uint64_t index) {
  uint64_t address = blocks.address;
  for (uint32_t at = blocks.dimensions; at-- > 0;) {
    address += index % blocks.count[at] * blocks.stride[at];
    index /= blocks.count[at];
  }
  return address;
}

TEST(PoolLayout, WholePagesAreOneBlockEach) {
  const PoolLayout layout = pool_layout(2, 1);
  EXPECT_EQ(layout.page_bytes(), 16u * 4 * 256);
  const auto blocks = layout.blocks(layout.heads);
  EXPECT_EQ(blocks.length, layout.page_bytes());
  EXPECT_EQ(blocks.size(), 6u * 10);
  EXPECT_EQ(blocks.size() * blocks.length, layout.bytes());
  std::vector<uint32_t> picks;
  layout.append_picks(layout.heads, 0, layout.shape.layer_planes(), {7, 3}, picks);
  ASSERT_EQ(picks.size(), 12u);
  EXPECT_EQ(block_address(blocks, picks[0]), layout.page_address(0, 7));
  EXPECT_EQ(block_address(blocks, picks[1]), layout.page_address(0, 3));
  EXPECT_EQ(block_address(blocks, picks[11]), layout.page_address(5, 3));
}

TEST(PoolLayout, SomeHeadsAreOneBlockPerToken) {
  const PoolLayout layout = pool_layout(1, 0);
  const HeadRange part{2, 2};
  const auto blocks = layout.blocks(part);
  EXPECT_EQ(blocks.length, 2u * 256);
  EXPECT_EQ(blocks.size(), 6u * 10 * 16);
  std::vector<uint32_t> picks;
  layout.append_picks(part, 5, 6, {9}, picks);
  ASSERT_EQ(picks.size(), 16u);
  for (uint32_t token = 0; token < 16; ++token) {
    EXPECT_EQ(block_address(blocks, picks[token]), layout.page_address(5, 9) + token * 8 * 256 + 2 * 256);
  }
}

}  // namespace
}  // namespace tool::replay
