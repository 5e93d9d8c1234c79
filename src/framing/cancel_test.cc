// Cancelled parts of a peer that lives and leaves them without an answer: a raw socket on which the test says what it
// wants.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "base/os/unique_fd.h"
#include "framing/test_support.h"
#include "framing/wire.h"

namespace towline::framing {
namespace {

using testing::FakePlan;
using testing::Side;

class CancelTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kBytes = 64 << 10;
  static constexpr uint32_t kBoth = TOWLINE_PART_FENCED_LOCAL | TOWLINE_PART_FENCED_REMOTE;

  CancelTest() {
    int fds[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) != 0) std::abort();
    owner_.reset(fds[0]);
    options_.frame_timeout_ns = 10 * kSecondNs;
    side_ = std::make_unique<Side>(options_);
    side_->connection.add_lane(std::make_unique<testing::FdLane>(fds[1]));
    plan_.add(memory_.data(), memory_.data(), kBytes);
  }
  // As a live owner does; it counts `counted` frames with it.
  void ping(uint32_t counted = 0) {
    FrameHeader header;
    header.type = FrameType::kMessage;
    header.sequence = sequence_++;
    header.ack = counted;
    header.message_bytes = 4;
    std::array<uint8_t, kHeaderBytes + 4> frame{};
    encode_header(header, frame.data());
    ASSERT_EQ(::send(owner_.get(), frame.data(), frame.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(frame.size()));
  }
  void answer(uint64_t offset, uint32_t bytes) {
    FrameHeader header;
    header.type = FrameType::kData;
    header.sequence = sequence_++;
    header.payload_bytes = bytes;
    header.offset = offset;
    header.part = wire_id_;
    std::vector<uint8_t> frame(kHeaderBytes + bytes);
    encode_header(header, frame.data());
    ASSERT_EQ(::send(owner_.get(), frame.data(), frame.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(frame.size()));
  }
  // Takes what this side has sent, and remembers the part that its first frame belongs to.
  void take() {
    std::vector<uint8_t> bytes(256 << 10);
    const ssize_t got = ::recv(owner_.get(), bytes.data(), bytes.size(), 0);
    if (got < static_cast<ssize_t>(kHeaderBytes)) return;
    FrameHeader header;
    ASSERT_EQ(decode_header(bytes.data(), header), nullptr);
    wire_id_ = header.part;
  }
  void pass(uint64_t ns = 0) {
    side_->host.clock.advance(ns);
    for (int i = 0; i < 10; ++i) side_->progress();
  }
  void post(uint32_t op, uint64_t cookie) {
    ASSERT_EQ(side_->submit(side_->prepare(plan_.plan(), op), cookie, 0, kBytes), Status::kInProgress);
    pass();
    take();
  }
  // The owner lives for so long, and counts nothing.
  void live(int seconds) {
    for (int i = 0; i < seconds && !side_->connection.down(); ++i) {
      ping();
      pass(kSecondNs);
    }
  }
  void expect_local_fence_alone(uint64_t cookie) {
    ASSERT_TRUE(side_->host.ended(cookie));
    EXPECT_EQ(side_->host.result(cookie).fences, static_cast<uint32_t>(TOWLINE_PART_FENCED_LOCAL));
    ASSERT_EQ(side_->host.events.size(), 1u);
    EXPECT_EQ(side_->host.events[0].status, Status::kPeerLost);
    EXPECT_NE(side_->host.events[0].text.find("cancelled"), std::string::npos) << side_->host.events[0].text;
  }

  UniqueFd owner_;
  ConnectionOptions options_;
  std::unique_ptr<Side> side_;
  std::vector<uint8_t> memory_ = std::vector<uint8_t>(kBytes);
  FakePlan plan_{1};
  uint64_t wire_id_ = 0;
  uint32_t sequence_ = 0;
};

TEST_F(CancelTest, AWriteThatALivePeerDoesNotCountGetsItsLocalFenceInTime) {
  post(TOWLINE_WRITE, 1);
  live(60);
  EXPECT_FALSE(side_->connection.down()) << "nobody waits for its fence";
  side_->connection.cancel(1);
  EXPECT_NE(side_->connection.frame_deadline_ns(), kNoDeadline) << "a worker that sleeps comes back for it";
  live(9);
  EXPECT_FALSE(side_->connection.down());
  live(6);  // 64 KiB may take four seconds, on top
  expect_local_fence_alone(1);
}

TEST_F(CancelTest, AReadThatALivePeerDoesNotAnswerGetsItsLocalFenceInTime) {
  post(TOWLINE_READ, 1);
  side_->connection.cancel(1);
  live(9);
  EXPECT_FALSE(side_->connection.down());
  answer(0, kBytes / 2);  // time begins anew with each answer
  live(9);
  EXPECT_FALSE(side_->connection.down());
  live(6);
  expect_local_fence_alone(1);
}

TEST_F(CancelTest, LaterPartsAndCancelsDoNotPutItOff) {
  post(TOWLINE_WRITE, 1);
  side_->connection.cancel(1);
  uint64_t cookie = 1;
  for (int i = 0; i < 15 && !side_->connection.down(); ++i) {
    post(i % 2 == 0 ? TOWLINE_WRITE : TOWLINE_READ, ++cookie);
    side_->connection.cancel(cookie);
    live(1);
  }
  expect_local_fence_alone(1);
}

TEST_F(CancelTest, ThatIsCountedLeavesNoTimeBehind) {
  post(TOWLINE_WRITE, 1);
  post(TOWLINE_WRITE, 2);
  side_->connection.cancel(1);
  live(5);
  ping(1);
  pass();
  ASSERT_TRUE(side_->host.ended(1));
  EXPECT_EQ(side_->host.result(1).fences, kBoth);
  EXPECT_EQ(side_->connection.frame_deadline_ns(), kNoDeadline);
  live(60);
  EXPECT_FALSE(side_->connection.down()) << "the other one is not cancelled";
}

// Its data is here, and only its message still has to find room in a lane that the peer does not read.
TEST_F(CancelTest, ThatWaitsForRoomForAMessageEndsAtOnce) {
  const std::string message(48 << 10, 'm');
  ASSERT_EQ(side_->submit(side_->prepare(plan_.plan(), TOWLINE_READ), 1, 0, kBytes, message),
            Status::kInProgress);
  pass();
  take();
  const std::vector<uint8_t> filling(32 << 10);
  while (static_cast<Status>(side_->connection.send(filling.data(), filling.size())) == Status::kOk) pass();
  answer(0, kBytes);
  pass();
  ASSERT_FALSE(side_->host.ended(1));
  side_->connection.cancel(1);
  pass();
  ASSERT_TRUE(side_->host.ended(1));
  EXPECT_EQ(side_->host.status(1), Status::kCancelled);
  EXPECT_EQ(side_->host.result(1).fences, kBoth);
}

}  // namespace
}  // namespace towline::framing
