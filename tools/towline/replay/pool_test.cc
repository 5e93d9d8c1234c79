#include "replay/pool.h"

#include <gtest/gtest.h>

#include <set>

namespace tool::replay {
namespace {

std::vector<BlockKey> keys(std::initializer_list<uint64_t> hashes, uint32_t tokens = 512) {
  std::vector<BlockKey> made;
  for (const uint64_t hash : hashes) made.push_back({hash, tokens});
  return made;
}

void release_all(BlockPool& pool, const std::vector<BlockPool::Held>& held) {
  for (const auto& one : held) pool.release(*one.block);
}

TEST(BlockPool, HandsEachPageOutOnce) {
  BlockPool pool{96, 16, 1};
  const auto held = pool.hold(keys({1, 2, 3}));
  ASSERT_TRUE(held);
  std::set<uint32_t> pages;
  for (const auto& one : *held) {
    EXPECT_TRUE(one.fresh);
    EXPECT_EQ(one.block->pages.size(), 32u);
    pages.insert(one.block->pages.begin(), one.block->pages.end());
  }
  EXPECT_EQ(pages.size(), 96u);
  EXPECT_EQ(pool.free_pages(), 0u);
}

TEST(BlockPool, ABlockCutShortTakesOnlyThePagesItNeeds) {
  BlockPool pool{96, 16, 1};
  const auto held = pool.hold({{1, 512}, {2, 17}});
  ASSERT_TRUE(held);
  EXPECT_EQ((*held)[1].block->pages.size(), 2u);
  // The whole of block 2 is another block.
  const auto whole = pool.hold({{2, 512}});
  ASSERT_TRUE(whole);
  EXPECT_TRUE((*whole)[0].fresh);
}

TEST(BlockPool, HoldsAllOrNothing) {
  BlockPool pool{96, 16, 1};
  const auto first = pool.hold(keys({1, 2}));
  EXPECT_FALSE(pool.hold(keys({3, 4})));
  EXPECT_EQ(pool.free_pages(), 32u);
  release_all(pool, *first);
  EXPECT_TRUE(pool.hold(keys({3, 4})));
}

TEST(BlockPool, KeepsReleasedBlocksUntilTheirPagesAreWantedLongestUnusedFirst) {
  BlockPool pool{96, 16, 1};
  release_all(pool, *pool.hold(keys({1})));
  release_all(pool, *pool.hold(keys({2})));
  release_all(pool, *pool.hold(keys({3})));
  release_all(pool, *pool.hold(keys({1})));  // now 2 is the longest unused
  EXPECT_EQ(pool.evictions(), 0u);
  release_all(pool, *pool.hold(keys({4})));
  EXPECT_EQ(pool.evictions(), 1u);
  const auto held = pool.hold(keys({1, 3, 4}));
  for (const auto& one : *held) EXPECT_FALSE(one.fresh);
  release_all(pool, *held);
  EXPECT_TRUE((*pool.hold(keys({2})))[0].fresh);
}

TEST(BlockPool, MakingRoomNeverTakesABlockOfTheSameRequest) {
  BlockPool pool{96, 16, 1};
  release_all(pool, *pool.hold(keys({1})));
  release_all(pool, *pool.hold(keys({2})));
  // 1 is the longest unused, but wanted here; with it, the two new ones do not fit beside 2.
  const auto held = pool.hold(keys({3, 1, 4}));
  ASSERT_TRUE(held);
  EXPECT_FALSE((*held)[1].fresh);
  EXPECT_EQ(pool.evictions(), 1u);
}

TEST(BlockPool, SharedBlocksStayUntilTheLastHolderLetsGo) {
  BlockPool pool{64, 16, 1};
  const auto first = pool.hold(keys({1}));
  const auto second = pool.hold(keys({1, 1}));
  EXPECT_EQ((*first)[0].block, (*second)[0].block);
  EXPECT_EQ((*second)[0].block, (*second)[1].block);
  release_all(pool, *second);
  EXPECT_FALSE(pool.hold(keys({2, 3})));
  release_all(pool, *first);
  EXPECT_TRUE(pool.hold(keys({2, 3})));
}

}  // namespace
}  // namespace tool::replay
