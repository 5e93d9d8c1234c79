// Payload that a lane reads after it was written: lanes that keep what they were lent until the test says otherwise.
#include <gtest/gtest.h>

#include <numeric>
#include <string>

#include "framing/connection.h"
#include "framing/lending_lane.h"
#include "framing/test_support.h"

namespace towline::framing {
namespace {

using testing::FakePlan;
using testing::LendingLane;
using testing::Side;

constexpr std::size_t kFrame = 256u << 10;

class LoansTest : public ::testing::Test {
 protected:
  void SetUp() override {
    testing::LanePair pair = testing::socket_lanes(kFrame);
    auto forth = std::make_unique<LendingLane>(std::move(pair.first));
    auto back = std::make_unique<LendingLane>(std::move(pair.second));
    forth_ = forth.get();
    back_ = back.get();
    a_.connection.add_lane(std::move(forth));
    b_.connection.add_lane(std::move(back));
    local_.resize(1u << 20);
    remote_.resize(local_.size());
    std::iota(local_.begin(), local_.end(), uint8_t{1});
    key_ = b_.host.add(remote_.data(), remote_.size());
    b_.host.on_message = [this](std::string_view text) { messages_.emplace_back(text); };
  }
  void TearDown() override {
    forth_->give_back();
    back_->give_back();
    a_.connection.close();
    b_.connection.close();
    turn();
    EXPECT_TRUE(a_.connection.settled() && b_.connection.settled());
  }
  void turn() {
    for (int i = 0; i < 1000; ++i) {
      a_.progress();
      b_.progress();
    }
  }
  void start(uint32_t op, uint32_t block = 64u << 10, std::string_view message = {}) {
    plans_.push_back(std::make_unique<FakePlan>(key_));
    for (std::size_t at = 0; at < local_.size(); at += block)
      plans_.back()->add(local_.data() + at, remote_.data() + at, block);
    towline_prepared* const prepared = a_.prepare(plans_.back()->plan(), op);
    ASSERT_EQ(a_.submit(prepared, 1, 0, local_.size(), message), Status::kInProgress);
  }

  std::vector<std::unique_ptr<FakePlan>> plans_;
  Side a_;
  Side b_;
  LendingLane* forth_ = nullptr;
  LendingLane* back_ = nullptr;
  std::vector<uint8_t> local_;
  std::vector<uint8_t> remote_;
  std::vector<std::string> messages_;
  uint64_t key_ = 0;
};

TEST_F(LoansTest, AWriteEndsWhenTheLaneHasLetGoOfItsMemory) {
  start(TOWLINE_WRITE, 64u << 10, "behind it");
  turn();
  EXPECT_EQ(remote_, local_);
  EXPECT_EQ(messages_, std::vector<std::string>{"behind it"});
  EXPECT_GE(forth_->lent(), local_.size() / kFrame);
  EXPECT_GE(forth_->least_piece(), 4096u);  // no header among them
  EXPECT_FALSE(a_.host.ended(1));
  EXPECT_FALSE(a_.connection.idle());
  forth_->give_back(forth_->lent() - 1);
  turn();
  EXPECT_FALSE(a_.host.ended(1));
  forth_->give_back(1);
  turn();
  ASSERT_TRUE(a_.host.ended(1));
  EXPECT_EQ(a_.host.status(1), Status::kOk);
  EXPECT_EQ(a_.host.result(1).fences, 3u);
  EXPECT_TRUE(a_.connection.idle());
}

TEST_F(LoansTest, AnAnswersMemoryStaysPinnedUntilTheLaneHasLetGoOfIt) {
  std::iota(remote_.begin(), remote_.end(), uint8_t{7});
  start(TOWLINE_READ);
  turn();
  ASSERT_TRUE(a_.host.ended(1));
  EXPECT_EQ(a_.host.status(1), Status::kOk);
  EXPECT_EQ(local_, remote_);
  EXPECT_NE(b_.host.pins_held(), 0u);
  back_->give_back();
  turn();
  EXPECT_EQ(b_.host.pins_held(), 0u);
}

TEST_F(LoansTest, ACancelledWriteEndsWhenTheLaneHasLetGoOfItsMemory) {
  start(TOWLINE_WRITE);
  a_.progress();  // the socket takes no more than a part of it
  a_.connection.cancel(1);
  turn();
  EXPECT_FALSE(a_.host.ended(1));
  forth_->give_back();
  turn();
  ASSERT_TRUE(a_.host.ended(1));
  EXPECT_EQ(a_.host.status(1), Status::kCancelled);
  EXPECT_EQ(a_.host.result(1).fences, 3u);
}

TEST_F(LoansTest, WhatABrokenConnectionLentKeepsItsPartsAndPins) {
  start(TOWLINE_WRITE);
  a_.progress();
  ASSERT_NE(forth_->lent(), 0u);
  a_.connection.fail(Status::kPeerLost, "by the test");
  EXPECT_TRUE(forth_->abandoned());
  turn();
  EXPECT_FALSE(a_.host.ended(1));
  EXPECT_FALSE(a_.connection.settled());
  EXPECT_TRUE(a_.connection.arm());  // nothing else wakes the worker
  forth_->give_back();
  turn();
  ASSERT_TRUE(a_.host.ended(1));
  EXPECT_EQ(a_.host.status(1), Status::kPeerLost);
  EXPECT_EQ(a_.host.result(1).fences & TOWLINE_PART_FENCED_LOCAL, TOWLINE_PART_FENCED_LOCAL);
  EXPECT_TRUE(a_.connection.settled());
}

TEST_F(LoansTest, APartThatHasArrivedSucceedsThoughTheConnectionBreaksBeforeTheLaneLetsGo) {
  start(TOWLINE_WRITE);
  turn();
  a_.connection.fail(Status::kPeerLost, "by the test");
  EXPECT_FALSE(a_.host.ended(1));
  forth_->give_back();
  turn();
  ASSERT_TRUE(a_.host.ended(1));
  EXPECT_EQ(a_.host.status(1), Status::kOk);
}

TEST_F(LoansTest, PinsOfAnOwnersBrokenConnectionStayUntilTheLaneLetsGo) {
  start(TOWLINE_READ);
  turn();
  b_.connection.fail(Status::kPeerLost, "by the test");
  EXPECT_NE(b_.host.pins_held(), 0u);
  back_->give_back();
  turn();
  EXPECT_EQ(b_.host.pins_held(), 0u);
}

TEST_F(LoansTest, ClosingLetsTheLaneGoOnUntilItIsCalledIn) {
  start(TOWLINE_READ);
  turn();
  b_.connection.close();
  EXPECT_FALSE(back_->abandoned());
  EXPECT_FALSE(b_.connection.settled());
  b_.connection.call_loans_in();
  EXPECT_TRUE(back_->abandoned());
  back_->give_back();
  b_.connection.call_loans_in();
  EXPECT_TRUE(b_.connection.settled());
  EXPECT_EQ(b_.host.pins_held(), 0u);
}

TEST_F(LoansTest, NoMoreFramesAreLentThanThereIsRoomFor) {
  FakePlan plan{key_};
  plan.add(local_.data(), remote_.data(), static_cast<uint32_t>(local_.size()));
  towline_prepared* const prepared = a_.prepare(plan.plan(), TOWLINE_WRITE);
  for (uint64_t cookie = 1; cookie <= 8; ++cookie)
    ASSERT_EQ(a_.submit(prepared, cookie, 0, local_.size()), Status::kInProgress);
  turn();
  const uint64_t lent_frames = Loans::kMost;
  uint64_t ended = 0;
  for (uint64_t cookie = 1; cookie <= 8; ++cookie) ended += a_.host.ended(cookie) ? 1 : 0;
  EXPECT_EQ(ended, 8 - lent_frames * kFrame / local_.size());  // the others were copied
  forth_->give_back();
  turn();
  for (uint64_t cookie = 1; cookie <= 8; ++cookie) EXPECT_EQ(a_.host.status(cookie), Status::kOk);
}

TEST_F(LoansTest, SmallPiecesAreCopied) {
  start(TOWLINE_WRITE, 4096);
  turn();
  // Neighbours are one piece; these are not.
  plans_.push_back(std::make_unique<FakePlan>(key_));
  for (std::size_t at = 0; at + 8192 <= local_.size(); at += 8192)
    plans_.back()->add(local_.data() + at, remote_.data() + at, 4096);
  const uint64_t before = forth_->lent();
  towline_prepared* const prepared = a_.prepare(plans_.back()->plan(), TOWLINE_WRITE);
  ASSERT_EQ(a_.submit(prepared, 2, 0, plans_.back()->bytes()), Status::kInProgress);
  turn();
  EXPECT_TRUE(a_.host.ended(2));
  EXPECT_EQ(forth_->lent(), before);
}

}  // namespace
}  // namespace towline::framing
