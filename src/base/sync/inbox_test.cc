#include "base/sync/inbox.h"

#include <gtest/gtest.h>

#include <thread>

namespace towline {
namespace {

TEST(Inbox, GivesEverythingOnceAndInOrder) {
  Inbox<int> inbox;
  EXPECT_TRUE(inbox.empty());
  EXPECT_TRUE(inbox.take().empty());
  inbox.put(1);
  inbox.put(2);
  EXPECT_FALSE(inbox.empty());
  EXPECT_EQ(inbox.take(), (std::vector<int>{1, 2}));
  EXPECT_TRUE(inbox.empty());
}

TEST(Inbox, LosesNothingThatComesWhileItIsTaken) {
  constexpr int kItems = 20'000;
  Inbox<int> inbox;
  std::thread writer([&] {
    for (int i = 0; i < kItems; ++i) inbox.put(i);
  });
  std::vector<int> all;
  while (all.size() < kItems) {
    if (inbox.empty()) continue;
    for (const int item : inbox.take()) all.push_back(item);
  }
  writer.join();
  for (int i = 0; i < kItems; ++i) ASSERT_EQ(all[static_cast<size_t>(i)], i);
}

}  // namespace
}  // namespace towline
