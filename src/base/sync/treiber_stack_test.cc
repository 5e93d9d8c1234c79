#include "base/sync/treiber_stack.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace towline {
namespace {

struct Node {
  uint32_t owner = 0;
  uint32_t number = 0;
  Node* next = nullptr;
};

using Stack = TreiberStack<Node, &Node::next>;

TEST(TreiberStackTest, GivesAllInEitherOrderAndTellsTheFirstPusher) {
  std::vector<Node> nodes(3);
  Stack stack;
  EXPECT_EQ(stack.pop_all(), nullptr);
  EXPECT_TRUE(stack.push(&nodes[0]));
  EXPECT_FALSE(stack.push(&nodes[1]));
  EXPECT_FALSE(stack.push(&nodes[2]));
  Node* newest = stack.pop_all();
  EXPECT_EQ(newest, &nodes[2]);
  EXPECT_EQ(newest->next->next, &nodes[0]);
  EXPECT_TRUE(stack.looks_empty());
  EXPECT_TRUE(stack.push(&nodes[0]));
  stack.push(&nodes[1]);
  Node* oldest = stack.pop_all_in_order();
  EXPECT_EQ(oldest, &nodes[0]);
  EXPECT_EQ(oldest->next, &nodes[1]);
  EXPECT_EQ(oldest->next->next, nullptr);
}

TEST(TreiberStackTest, ManyPushersLoseNothingAndKeepTheirOrder) {
  constexpr uint32_t kThreads = 4;
  constexpr uint32_t kEach = 20000;
  std::vector<std::vector<Node>> nodes(kThreads, std::vector<Node>(kEach));
  Stack stack;
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (uint32_t i = 0; i < kEach; ++i) {
        nodes[t][i].owner = t;
        nodes[t][i].number = i;
        stack.push(&nodes[t][i]);
      }
    });
  }
  std::vector<uint32_t> next(kThreads, 0);
  for (uint32_t got = 0; got < kThreads * kEach;) {
    for (Node* node = stack.pop_all_in_order(); node != nullptr; node = node->next) {
      EXPECT_EQ(node->number, next[node->owner]++);
      ++got;
    }
    std::this_thread::yield();
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace towline
