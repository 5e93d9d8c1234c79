// The engine of sends and receives, over a channel that gives what the test says.
#include "collectives/messages.h"

#include <gtest/gtest.h>

#include <cstring>

#include "towline/collectives.h"

namespace towline::collectives {
namespace {

// Gives what is put in, and takes everything.
class Given final : public Channel {
 public:
  size_t write(const void*, size_t bytes) override { return bytes; }
  size_t read(void* data, size_t bytes) override {
    const size_t count = std::min(bytes, bytes_.size());
    std::copy_n(bytes_.begin(), count, static_cast<uint8_t*>(data));
    bytes_.erase(bytes_.begin(), bytes_.begin() + static_cast<ptrdiff_t>(count));
    return count;
  }
  bool can_write() override { return true; }
  bool can_read() override { return !bytes_.empty(); }
  void put_header(uint64_t tag, uint64_t bytes) {
    const struct {
      uint64_t bytes, tag;
      uint32_t datatype, reserved;
    } wire = {bytes, tag, TOWLINE_UINT8, 0};
    const auto* const header = reinterpret_cast<const uint8_t*>(&wire);
    bytes_.insert(bytes_.end(), header, header + sizeof wire);
  }
  void put_bytes(size_t count, uint8_t value = 0) { bytes_.insert(bytes_.end(), count, value); }
  // A message of one byte.
  void put(uint64_t tag, uint8_t value) {
    put_header(tag, 1);
    put_bytes(1, value);
  }

 private:
  std::deque<uint8_t> bytes_;
};

class MessagesOfOneRank : public ::testing::Test {
 protected:
  MessagesOfOneRank() {
    auto given = std::make_unique<Given>();
    given_ = given.get();
    channel_ = std::move(given);
  }
  static Message receive(uint64_t tag, uint8_t& to) {
    towline_collective_t call = {};
    call.op = TOWLINE_COLLECTIVE_RECV;
    call.datatype = TOWLINE_UINT8;
    call.count = 1;
    call.root = 1;
    call.tag = tag;
    call.output = &to;
    return message_of(call);
  }
  // As a thread that waits asks, each with a number of its own.
  bool ready(int thread = 0) {
    std::vector<int> none;
    return engine_.ready(none, none, seen_[thread]);
  }

  std::unique_ptr<Channel> channel_;
  Given* given_ = nullptr;
  Breaker breaker_;
  MessageEngine engine_{0, 2, [this](int) { return std::move(channel_); }, breaker_};
  uint64_t seen_[2] = {};
  uint8_t one_ = 0;
  uint8_t two_ = 0;
};

// Its owner may have looked just before, and would sleep through it. Once is enough: the owner may be busy elsewhere for long.
TEST_F(MessagesOfOneRank, WhatAnothersTestHasEndedIsSomethingToDoOnceForEachThread) {
  Message first = receive(1, one_);
  Message second = receive(2, two_);
  engine_.start(first);
  ASSERT_EQ(engine_.run(second), Status::kInProgress);
  for (const int thread : {0, 1}) {
    EXPECT_TRUE(ready(thread)) << "it has not waited here before";
    EXPECT_FALSE(ready(thread));
  }
  given_->put(1, 10);
  given_->put(2, 20);
  EXPECT_EQ(engine_.test(first), Status::kOk);
  for (const int thread : {0, 1}) {
    EXPECT_TRUE(ready(thread));
    EXPECT_FALSE(ready(thread));
  }
  EXPECT_EQ(engine_.test(second), Status::kOk);
  EXPECT_EQ(one_, 10);
  EXPECT_EQ(two_, 20);
}

// Both came in one piece, and a receive for the second starts later.
TEST_F(MessagesOfOneRank, WhatWasReadAheadIsThereForTheNextReceive) {
  given_->put(1, 10);
  given_->put(2, 20);
  Message first = receive(1, one_);
  EXPECT_EQ(engine_.run(first), Status::kOk);
  EXPECT_FALSE(given_->can_read());
  (void)ready();
  EXPECT_FALSE(ready());
  Message second = receive(2, two_);
  engine_.start(second);
  EXPECT_TRUE(ready());
  EXPECT_EQ(engine_.test(second), Status::kOk);
  EXPECT_EQ(two_, 20);
}

// As if it had a tebibyte: what is left of it takes no memory.
TEST_F(MessagesOfOneRank, AMessageThatIsForgottenAmidItsBytesTakesNoMemory) {
  Message large = receive(1, one_);
  large.bytes = uint64_t{1} << 40;
  given_->put_header(1, large.bytes);
  ASSERT_EQ(engine_.run(large), Status::kInProgress);
  engine_.forget(large);
}

TEST_F(MessagesOfOneRank, TheRestOfAForgottenMessageIsNoMessage) {
  std::vector<uint8_t> gone(10'000);
  Message late = receive(1, gone[0]);
  late.bytes = gone.size();
  given_->put_header(1, late.bytes);
  given_->put_bytes(100);
  ASSERT_EQ(engine_.run(late), Status::kInProgress);
  engine_.forget(late);
  given_->put_bytes(gone.size() - 100);
  given_->put(1, 10);
  Message next = receive(1, one_);
  engine_.start(next);
  EXPECT_EQ(engine_.test(next), Status::kOk);
  EXPECT_EQ(one_, 10);
}

TEST_F(MessagesOfOneRank, ARunThatDoesNotEndIsForgotten) {
  {
    uint8_t gone = 0;
    Message late = receive(1, gone);
    ASSERT_EQ(engine_.run(late), Status::kInProgress);
    engine_.forget(late);
  }
  given_->put(1, 10);
  Message next = receive(1, one_);
  EXPECT_EQ(engine_.run(next), Status::kOk);
  EXPECT_EQ(one_, 10);
}

}  // namespace
}  // namespace towline::collectives
