#include "base/sync/rcu_value.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace towline {
namespace {

using Numbers = RcuValue<std::vector<uint64_t>>;

TEST(RcuValue, isWhatWasSetLast) {
  Numbers numbers;
  EXPECT_FALSE(Numbers::Look(numbers));
  EXPECT_TRUE(numbers.empty());
  numbers.set({1, 2});
  numbers.set({3});
  EXPECT_EQ(Numbers::Look(numbers)->size(), 1U);
  numbers.clear();
  EXPECT_FALSE(Numbers::Look(numbers));
}

TEST(RcuValue, staysForWhoLooksAtItWhileItIsReplaced) {
  Numbers numbers;
  numbers.set({1, 2});
  {
    const Numbers::Look look(numbers);
    std::thread([&] {
      numbers.set({3});
      numbers.clear();
    }).join();
    EXPECT_EQ(*look, (std::vector<uint64_t>{1, 2}));
  }
  numbers.set({4});
  EXPECT_EQ(*Numbers::Look(numbers), std::vector<uint64_t>{4});
}

TEST(RcuValue, isWholeWhileOthersReplaceIt) {
  Numbers numbers;
  numbers.set(std::vector<uint64_t>(8));
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> looks{0};
  std::vector<std::thread> readers;
  for (int i = 0; i < 3; ++i) {
    readers.emplace_back([&] {
      while (!stop.load(std::memory_order_relaxed)) {
        if (const Numbers::Look look(numbers); look) {
          for (const uint64_t number : *look) EXPECT_EQ(number, look->front());
        }
        looks.fetch_add(1, std::memory_order_relaxed);
      }
    });
  }
  for (uint64_t round = 1; round < 300 || looks.load() < 1000; ++round) {
    if (round % 7 == 0) numbers.clear();
    numbers.set(std::vector<uint64_t>(8, round));
  }
  stop.store(true);
  for (std::thread& reader : readers) reader.join();
}

}  // namespace
}  // namespace towline
