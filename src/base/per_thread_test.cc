#include "base/per_thread.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "support/failing_new.h"

namespace towline {
namespace {

std::atomic<int> alive{0};
std::atomic<int> made{0};

struct Counted {
  Counted() {
    ++alive;
    ++made;
  }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;
  ~Counted() { --alive; }
  int value = 0;
};

class PerThreadTest : public testing::Test {
 protected:
  PerThreadTest() { alive = made = 0; }
};

TEST_F(PerThreadTest, EachThreadHasOneAndFreesItAtItsEnd) {
  const auto one = [] {
    EXPECT_EQ(PerThread<Counted>::get().value, 0);
    PerThread<Counted>::get().value = 7;
    EXPECT_EQ(PerThread<Counted>::get().value, 7);
  };
  std::thread(one).join();
  std::thread(one).join();
  EXPECT_EQ(made, 2);
  EXPECT_EQ(alive, 0);
}

// Functions at a thread's end run in the reverse order of their registration.
TEST_F(PerThreadTest, AFunctionAtTheThreadsEndGetsANewOneThatIsFreedToo) {
  std::thread([] {
    at_thread_end(
        [](void*) {
          EXPECT_EQ(alive, 0);
          EXPECT_EQ(PerThread<Counted>::get().value, 0);
        },
        nullptr);
    PerThread<Counted>::get().value = 7;
  }).join();
  EXPECT_EQ(made, 2);
  EXPECT_EQ(alive, 0);
}

TEST_F(PerThreadTest, WithoutMemoryItThrowsAndIsMadeLater) {
  std::thread([] {
    support::fail_allocations();
    EXPECT_THROW((void)PerThread<Counted>::get(), std::bad_alloc);
    support::stop_failing();
    EXPECT_EQ(PerThread<Counted>::get().value, 0);
  }).join();
  EXPECT_EQ(alive, 0);
}

thread_local constinit ThreadText text;
constexpr std::string_view kLong = "a text that is too long to lie in the string object itself";

TEST(ThreadText, IsItsThreadsAndIsTakenOnce) {
  EXPECT_TRUE(text.empty());
  EXPECT_STREQ(text.c_str(), "");
  text.set(kLong);
  std::thread([] {
    EXPECT_TRUE(text.empty());
    text.keep("another");
    EXPECT_STREQ(text.c_str(), "another");
  }).join();
  EXPECT_EQ(text.c_str(), kLong);
  EXPECT_EQ(text.take(), kLong);
  EXPECT_TRUE(text.empty());
}

TEST(ThreadText, SaysThatMemoryIsShortAndGoesOnWhenItIsNot) {
  for (const int allocations : {0, 1}) {  // no memory for the object, and none for the text
    std::thread([&] {
      support::fail_allocations(allocations);
      text.set(kLong);
      const std::string first = text.c_str();
      const std::string taken = text.take();
      support::stop_failing();
      EXPECT_EQ(first, "out of memory");
      EXPECT_EQ(taken, "out of memory");
      EXPECT_TRUE(text.empty());
      text.set(kLong);
      EXPECT_EQ(text.c_str(), kLong);
      text.clear();
      EXPECT_TRUE(text.empty());
    }).join();
  }
}

TEST(ThreadText, MayBeSetAtTheThreadsEnd) {
  std::thread([] {
    at_thread_end(
        [](void*) {
          EXPECT_TRUE(text.empty());
          text.set(kLong);
          EXPECT_EQ(text.c_str(), kLong);
        },
        nullptr);
    text.set(kLong);
  }).join();
}

}  // namespace
}  // namespace towline
