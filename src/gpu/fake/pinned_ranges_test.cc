#include "gpu/pinned_ranges.h"

#include <gtest/gtest.h>

#include <thread>

#include "base/error.h"
#include "gpu/fake/fake_device.h"

namespace towline::cuda::fake {
namespace {

constexpr uint64_t kAddress = uint64_t{1} << 40;  // never touched
constexpr uint64_t kBytes = 1 << 20;

class PinnedRangesTest : public ::testing::Test {
 protected:
  ~PinnedRangesTest() override { faults().reset(); }
  std::shared_ptr<const Pinned> take(uint64_t address, uint64_t bytes, Use use = Use::kWrite) {
    return device_.pinned_ranges().take(device_, address, bytes, use);
  }
  std::shared_ptr<const Pinned> find(uint64_t address, uint64_t bytes) {
    return device_.pinned_ranges().find(device_, address, bytes, Use::kWrite);
  }
  std::string refusal(uint64_t address, uint64_t bytes, Use use = Use::kWrite) {
    try {
      (void)take(address, bytes, use);
    } catch (const core::Error& error) {
      return error.message();
    }
    return "none";
  }
  bool pinned() { return device_.find_pinned(kAddress, 1) != nullptr; }

  Device& device_ = fake_device();
};

TEST_F(PinnedRangesTest, ARangeStaysUntilItsLastHolderLetsGo) {
  auto first = take(kAddress, kBytes);
  auto inside = take(kAddress + 5000, 100);
  first.reset();
  EXPECT_TRUE(pinned());
  inside.reset();
  EXPECT_FALSE(pinned());
}

TEST_F(PinnedRangesTest, WholePagesArePinned) {
  const auto held = take(kAddress + 100, 1);
  EXPECT_NE(device_.find_pinned(kAddress, 4096), nullptr);
}

TEST_F(PinnedRangesTest, WhatWasPinnedForReadingIsNotHandedOutForWriting) {
  faults().pin_for_reading(kAddress, kBytes);
  EXPECT_NE(refusal(kAddress, kBytes).find("reading only"), std::string::npos);
  EXPECT_EQ(refusal(kAddress, 100, Use::kRead), "none");
}

TEST_F(PinnedRangesTest, ARangeThatOverlapsAnotherIsRefused) {
  const auto held = take(kAddress, kBytes);
  EXPECT_NE(refusal(kAddress - 4096, kBytes).find("a part of"), std::string::npos);
  EXPECT_NE(refusal(kAddress + 4096, kBytes).find("a part of"), std::string::npos);
  EXPECT_EQ(refusal(kAddress, kBytes + 4096), "none");
  EXPECT_EQ(refusal(kAddress + kBytes, kBytes), "none");
}

TEST_F(PinnedRangesTest, NeighboursHoldThePageTheyShareAndNothingElseOfEachOther) {
  const uint64_t border = kAddress + kBytes + 100;
  auto low = take(kAddress + 7, border - kAddress - 7);
  auto high = take(border, kBytes);
  EXPECT_EQ(low->end_of(kAddress + 7), kAddress + 4096);
  EXPECT_EQ(low->end_of(kAddress + 4096), kAddress + kBytes);
  EXPECT_EQ(low->end_of(border - 1), kAddress + kBytes + 4096);
  const auto is_pinned = [&](uint64_t address) { return device_.find_pinned(address, 1) != nullptr; };
  low.reset();
  EXPECT_FALSE(pinned());
  EXPECT_FALSE(is_pinned(border - 4096)) << "the rest of the lower one may be given back";
  EXPECT_TRUE(is_pinned(border));
  low = take(kAddress + 7, border - kAddress - 7);
  high.reset();
  EXPECT_TRUE(is_pinned(border));
  EXPECT_FALSE(is_pinned(border + 4096));
  low.reset();
  EXPECT_FALSE(is_pinned(border));
}

TEST_F(PinnedRangesTest, WhatAnyPageOfIsBeingPinnedIsNotFoundYet) {
  const auto low = take(kAddress, 100);
  EXPECT_EQ(find(kAddress + 200, kBytes), nullptr);
  const auto high = take(kAddress + 200, kBytes);
  EXPECT_NE(find(kAddress + 200, kBytes), nullptr);
}

TEST_F(PinnedRangesTest, WhatTheApplicationPinnedIsUsedAndNotLetGo) {
  auto theirs = device_.pin(kAddress, kBytes);
  EXPECT_NE(find(kAddress, kBytes), nullptr);
  (void)take(kAddress, kBytes);
  EXPECT_TRUE(pinned());
  theirs.reset();
  EXPECT_EQ(find(kAddress, kBytes), nullptr);
}

TEST_F(PinnedRangesTest, NobodyElseWaitsWhileARangeIsPinned) {
  faults().pins.hold(true);
  std::shared_ptr<const Pinned> first;
  std::shared_ptr<const Pinned> second;
  std::thread pinning([&] { first = take(kAddress, kBytes); });
  while (!faults().pins.waited_for()) std::this_thread::yield();
  std::thread also([&] { second = take(kAddress, 100); });
  EXPECT_EQ(find(kAddress, kBytes), nullptr);
  EXPECT_EQ(find(kAddress + (1 << 30), kBytes), nullptr);
  faults().pins.hold(false);
  pinning.join();
  also.join();
  EXPECT_NE(find(kAddress, kBytes), nullptr);
  first.reset();
  EXPECT_TRUE(pinned());
  second.reset();
  EXPECT_FALSE(pinned());
}

TEST_F(PinnedRangesTest, ARefusalLeavesNothing) {
  faults().refuse_pins(true);
  EXPECT_NE(refusal(kAddress, kBytes).find("refused"), std::string::npos);
  faults().refuse_pins(false);
  EXPECT_EQ(refusal(kAddress, kBytes), "none");
  EXPECT_FALSE(pinned());
}

}  // namespace
}  // namespace towline::cuda::fake
