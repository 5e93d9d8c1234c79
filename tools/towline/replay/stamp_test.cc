#include "replay/stamp.h"

#include <gtest/gtest.h>

#include <vector>

namespace tool::replay {
namespace {

struct Pool {
  explicit Pool(uint32_t ranks, uint32_t rank) {
    layout.shape = make_shape(find_model("llama-3.1-8b"), 2, "bf16", 16);
    layout.heads = heads_of_rank(layout.shape, ranks, rank);
    layout.pages = 4;
    memory.resize(layout.bytes() / sizeof(uint64_t));
    layout.base = reinterpret_cast<uint64_t>(memory.data());
  }
  PoolLayout layout;
  std::vector<uint64_t> memory;
};

TEST(Stamper, WhatWasWrittenPasses) {
  for (const Verify verify : {Verify::kSampled, Verify::kFull}) {
    const Pool pool{2, 1};
    const Stamper stamper{pool.layout, 2, verify};
    stamper.write({.hash = 5, .epoch = 3, .writer = 1}, 7, 2);
    Mismatch mismatch;
    EXPECT_TRUE(stamper.check({.hash = 5, .epoch = 3, .writer = 1}, 7, 2, pool.layout.heads, mismatch));
    EXPECT_TRUE(stamper.check({.hash = 5, .epoch = 3, .writer = 1}, 7, 2, {6, 2}, mismatch));
  }
}

TEST(Stamper, AnotherHashEpochWriterPlaceOrPageDoesNot) {
  const Pool pool{2, 1};
  const Stamper stamper{pool.layout, 2, Verify::kSampled};
  stamper.write({.hash = 5, .epoch = 3, .writer = 1}, 7, 2);
  Mismatch mismatch;
  const HeadRange heads = pool.layout.heads;
  EXPECT_FALSE(stamper.check({.hash = 6, .epoch = 3, .writer = 1}, 7, 2, heads, mismatch));
  EXPECT_FALSE(stamper.check({.hash = 5, .epoch = 2, .writer = 1}, 7, 2, heads, mismatch));
  EXPECT_FALSE(stamper.check({.hash = 5, .epoch = 3, .writer = 0}, 7, 2, heads, mismatch));
  EXPECT_FALSE(stamper.check({.hash = 5, .epoch = 3, .writer = 1}, 6, 2, heads, mismatch));
  EXPECT_FALSE(stamper.check({.hash = 5, .epoch = 3, .writer = 1}, 7, 1, heads, mismatch));
  EXPECT_EQ(mismatch.address, pool.layout.page_address(0, 1));
}

TEST(Stamper, FullChecksSeeEveryByte) {
  Pool pool{1, 0};
  const Stamper stamper{pool.layout, 8, Verify::kFull};
  stamper.write({.hash = 5}, 0, 3);
  Mismatch mismatch;
  const uint64_t words = pool.layout.page_bytes() / sizeof(uint64_t);
  const uint64_t first = (pool.layout.page_address(3, 3) - pool.layout.base) / sizeof(uint64_t);
  for (const uint64_t word : {uint64_t{0}, words / 2, words - 1}) {
    pool.memory[first + word] ^= 1ull << 40;
    EXPECT_FALSE(stamper.check({.hash = 5}, 0, 3, pool.layout.heads, mismatch));
    EXPECT_EQ(mismatch.address, reinterpret_cast<uint64_t>(&pool.memory[first + word]));
    pool.memory[first + word] ^= 1ull << 40;
  }
  EXPECT_TRUE(stamper.check({.hash = 5}, 0, 3, pool.layout.heads, mismatch));
}

// A decode rank with two heads finds exactly the stamps that a prefill rank with all heads writes.
TEST(Stamper, StampsOfAHeadAreTheSameOnBothSides) {
  const Pool prefill{1, 0};
  const Pool decode{4, 2};
  const Stamper writer{prefill.layout, 2, Verify::kFull};
  const Stamper checker{decode.layout, 2, Verify::kFull};
  writer.write({.hash = 9, .epoch = 1}, 0, 1);
  const HeadRange part = decode.layout.heads;
  std::vector<uint32_t> from;
  std::vector<uint32_t> to;
  prefill.layout.append_picks(part, 0, 4, {1}, from);
  decode.layout.append_picks(part, 0, 4, {3}, to);
  ASSERT_EQ(from.size(), to.size() * 16);
  const auto source = prefill.layout.blocks(part);
  const uint64_t row = source.length;
  for (size_t block = 0; block < from.size(); ++block) {
    const uint64_t layer_plane = from[block] / (4 * 16);
    const uint64_t target =
        decode.layout.page_address(static_cast<uint32_t>(layer_plane), 3) + block % 16 * row;
    const uint64_t origin = prefill.layout.page_address(static_cast<uint32_t>(layer_plane), 1) +
                            block % 16 * prefill.layout.token_bytes() + uint64_t{part.first} * 256;
    __builtin_memcpy(reinterpret_cast<void*>(target), reinterpret_cast<const void*>(origin), row);
  }
  Mismatch mismatch;
  EXPECT_TRUE(checker.check({.hash = 9, .epoch = 1}, 0, 3, part, mismatch));
  EXPECT_FALSE(checker.check({.hash = 9, .epoch = 2}, 0, 3, part, mismatch));
}

}  // namespace
}  // namespace tool::replay
