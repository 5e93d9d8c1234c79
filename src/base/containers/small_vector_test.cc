#include "base/containers/small_vector.h"

#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

namespace towline {
namespace {

std::vector<int> items_of(const SmallVector<int, 2>& list) { return {list.begin(), list.end()}; }

TEST(SmallVector, KeepsItemsInOrderWhereverTheyLie) {
  SmallVector<int, 2> list;
  EXPECT_TRUE(list.empty());
  std::vector<int> expected;
  for (int i = 0; i < 9; ++i) {
    list.push_back(i);
    expected.push_back(i);
    EXPECT_EQ(items_of(list), expected);
    EXPECT_EQ(list.front(), 0);
    EXPECT_EQ(list.back(), i);
  }
  list.clear();
  EXPECT_TRUE(list.empty());
  list.push_back(7);
  EXPECT_EQ(items_of(list), std::vector<int>{7});
}

TEST(SmallVector, CopiesAndMovesAreWhole) {
  for (const size_t count : {size_t{0}, size_t{2}, size_t{5}}) {
    const std::vector<int> items(count, 3);
    SmallVector<int, 2> list(items.begin(), items.end());
    const SmallVector<int, 2> copy = list;
    EXPECT_EQ(items_of(copy), items);
    const SmallVector<int, 2> moved = std::move(list);
    EXPECT_EQ(items_of(moved), items);
  }
}

TEST(SmallVector, LetsGoOfWhatItHeld) {
  const auto held = std::make_shared<int>(1);
  SmallVector<std::shared_ptr<int>, 1> list;
  list.push_back(held);
  list.push_back(held);
  EXPECT_EQ(held.use_count(), 3);
  list.clear();
  EXPECT_EQ(held.use_count(), 1);
}

}  // namespace
}  // namespace towline
