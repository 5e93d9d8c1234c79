#include "base/sync/wake_path.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <thread>
#include <vector>

#include "support/failing_allocations.h"

namespace towline {
namespace {

struct alignas(WakePages::kPageBytes) Page {
  std::byte bytes[WakePages::kPageBytes];
};

TEST(WakePages, APageIsNotedOnceHoweverOftenItIsNamed) {
  const std::vector<Page> memory(1);
  WakePages pages;
  pages.add(&memory[0].bytes[100], 64);
  pages.add(&memory[0].bytes[0], 1);
  pages.add_object(memory[0]);
  ASSERT_EQ(pages.pages().size(), 1u);
  EXPECT_EQ(pages.pages()[0], &memory[0].bytes[100]);
  pages.clear();
  EXPECT_TRUE(pages.pages().empty());
}

TEST(WakePages, EveryPageOfAnObjectIsNoted) {
  const std::vector<Page> memory(3);
  WakePages pages;
  pages.add(&memory[0].bytes[4000], 200);  // the end of one, the beginning of the next
  ASSERT_EQ(pages.pages().size(), 2u);
  EXPECT_EQ(pages.pages()[1], &memory[1].bytes[0]);
  pages.add(&memory[1].bytes[0], 2 * sizeof(Page));
  EXPECT_EQ(pages.pages().size(), 3u);
  pages.add(&memory[2].bytes[0], 0);
  EXPECT_EQ(pages.pages().size(), 3u);
}

TEST(WakePages, WhatIsBeyondItsRoomIsLeftOut) {
  const std::vector<Page> memory(WakePages::kMost + 2);
  WakePages pages;
  pages.add(memory.data(), memory.size() * sizeof(Page));
  EXPECT_TRUE(pages.full());
  EXPECT_EQ(pages.pages().size(), WakePages::kMost);
  pages.add_object(memory.back());
  EXPECT_EQ(pages.pages().size(), WakePages::kMost);
  pages.ask();
}

// Memory that is gone by then is asked for without harm.
TEST(WakePages, AsksForMemoryThatIsGone) {
  WakePages pages;
  pages.add(reinterpret_cast<const void*>(8 * WakePages::kPageBytes), 1);
  pages.ask();
  EXPECT_EQ(pages.pages().size(), 1u);
}

// They are hints: a worker that can't note them sleeps without.
TEST(WakePages, WithoutMemoryAThreadNotesNone) {
  std::thread([] {
    const std::vector<Page> memory(1);
    support::fail_allocations();
    wake_pages().clear();
    wake_pages().add_object(memory[0]);
    EXPECT_TRUE(wake_pages().pages().empty());
    EXPECT_TRUE(wake_pages().full());
    wake_pages().ask();
    support::stop_failing();
    wake_pages().add_object(memory[0]);
    EXPECT_EQ(wake_pages().pages().size(), 1u);
  }).join();
}

}  // namespace
}  // namespace towline
