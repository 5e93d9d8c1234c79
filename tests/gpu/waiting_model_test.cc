// What a waiting kernel of collectives makes of ranks that are gone.
#include <gtest/gtest.h>

#include <vector>

#include "collectives/gpu/waiting.h"

namespace towline::collectives::gpu {
namespace {

class Waiting : public testing::Test {
 protected:
  Waiting() {
    job_.rank = 0;
    job_.size = 3;
    job_.timeout_ns = UINT64_MAX;
    for (uint32_t rank = 0; rank < job_.size; ++rank)
      job_.segment[rank] = reinterpret_cast<uint64_t>(&controls_[rank]);
    job_.orders = reinterpret_cast<uint64_t>(&orders_);
    job_.report[0] = reinterpret_cast<uint64_t>(&report_);
  }
  // Looks for `peer` until something ends the wait, but at most for a few rounds of looks.
  bool gives_up(Waiter& waiter, uint32_t peer, int looks) {
    for (int i = 0; i < looks * 64; ++i)
      if (give_up(job_, waiter, peer, nullptr, 0)) return true;
    return false;
  }

  std::vector<Control> controls_{3};
  Orders orders_{};
  Report report_{};
  Job job_{};
};

// A rank gives its data, ends and leaves, all between two looks of another one, which is at the end of its patience.
TEST_F(Waiting, ForARankThatIsGoneLooksOnceMore) {
  for (const Failure how : {Failure::kLeft, Failure::kLost}) {
    Waiter waiter;
    ASSERT_FALSE(gives_up(waiter, 1, 15));
    if (how == Failure::kLeft)
      controls_[0].left[1] = 1;
    else
      orders_ = {.stop = static_cast<uint64_t>(how), .peer = 1, .rank = 0};
    EXPECT_FALSE(gives_up(waiter, 1, 1)) << "it may have come";
    EXPECT_EQ(report_.state, 0u);
    EXPECT_TRUE(gives_up(waiter, 1, 1));
    EXPECT_EQ(report_.failure, static_cast<uint32_t>(how));
    EXPECT_EQ(report_.peer, 1u);
    controls_.assign(3, {});
    orders_ = {};
    report_ = {};
  }
}

// It had come; now another one is waited for, which is gone as well.
TEST_F(Waiting, ForEachRankThatIsGoneLooksOnceMore) {
  Waiter waiter;
  controls_[0].left[1] = controls_[0].left[2] = 1;
  EXPECT_FALSE(gives_up(waiter, 1, 16));
  EXPECT_FALSE(gives_up(waiter, 2, 1));
  EXPECT_TRUE(gives_up(waiter, 2, 1));
  EXPECT_EQ(report_.peer, 2u);
}

TEST_F(Waiting, EndsAtOnceWhenTheHostStopsIt) {
  Waiter waiter;
  orders_ = {.stop = static_cast<uint64_t>(Failure::kAborted), .peer = 0, .rank = 0};
  ASSERT_FALSE(gives_up(waiter, 1, 15));
  EXPECT_TRUE(gives_up(waiter, 1, 1));
  EXPECT_EQ(report_.failure, static_cast<uint32_t>(Failure::kAborted));
}

}  // namespace
}  // namespace towline::collectives::gpu
